# docs/api.md: every public name of torch.cuda and torch.xpu is in torch.kunlun, or absent with a reason.
from tools import api_table


def test_every_name_is_present_or_explained():
    assert api_table.unexplained() == []


def test_no_reason_is_left_for_a_name_that_is_present():
    assert api_table.unused_reasons() == []


def test_the_page_is_what_the_script_writes():
    assert api_table.PAGE.read_text() == api_table.page(), "run `python -m tools.api_table`"


def test_a_missing_name_would_be_found():
    paths = [path for path, _, _ in api_table.rows()]
    assert len(paths) == len(set(paths)) > 300
    assert "torch.cuda.Stream.wait_stream" in paths
    assert api_table.row("torch.cuda.something_new") == ("absent", "")
    assert api_table.row("torch.cuda.Stream.something_new") == ("absent", "")
    assert api_table.row("torch.cuda.streams.Event.elapsed_time") == ("`streams.Event.elapsed_time`", "")
