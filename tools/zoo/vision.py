# A model that sees: its processor, the pictures, and what it writes about them.
from tools.zoo.tokenizer import byte_pairs
from tools.zoo.writing import write

SIDE, PATCH = 32, 16  # pixels; the class token and four patches for each picture
IMAGE = "<image>"
PROMPTS = (f"{IMAGE}\nWhat is in the picture?", f"Look: {IMAGE}\nA word for it is", f"{IMAGE} and some text after it")


def picture(number: int):
    """A picture of stripes, in a size and in colours of its own."""
    from PIL import Image

    made = Image.new("RGB", (40 + 8 * number, 48))
    made.putdata(
        [
            (x * 5 % 256, y * (3 + number) % 256, (x * (number + 1) + y) // 7 * 60 % 256)
            for y in range(made.height)
            for x in range(made.width)
        ]
    )
    return made


def processor():
    """Text with IMAGE in it, and pictures."""
    from transformers import CLIPImageProcessor, LlavaProcessor

    return LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer=byte_pairs(extra=(IMAGE,)),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def answers(model, processor) -> list[dict]:
    """An answer to each of PROMPTS, the first about the first picture and so on."""
    written = []
    for number, prompt in enumerate(PROMPTS):
        inputs = processor(images=picture(number), text=prompt, return_tensors="pt").to(model.device)
        written.append({"prompt": prompt, "picture": number, **write(model, inputs, processor.tokenizer)})
    return written
