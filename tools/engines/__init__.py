"""Programs around the inference engines: demonstrations, and tables of what runs."""
