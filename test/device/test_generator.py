# Generators: their 16-byte state, seeds, offsets, default generators.
import struct

import pytest
import torch


def words(state):
    return struct.unpack("<QQ", bytes(state.tolist()))


def test_the_state_is_seed_and_offset():
    generator = torch.Generator("kunlun")
    generator.manual_seed(1234567890123)
    state = generator.get_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    assert state.shape == (16,)
    assert words(state) == (1234567890123, 0)
    generator.set_offset(8)
    assert generator.get_offset() == 8
    assert words(generator.get_state()) == (1234567890123, 8)


def test_a_state_can_be_set_again():
    generator = torch.Generator("kunlun").manual_seed(5)
    generator.set_offset(400)
    other = torch.Generator("kunlun")
    other.set_state(generator.get_state())
    assert other.initial_seed() == 5
    assert other.get_offset() == 400


def test_seeding_starts_from_the_beginning():
    generator = torch.Generator("kunlun")
    generator.set_offset(4)
    generator.manual_seed(1)
    assert generator.get_offset() == 0
    first, second = generator.seed(), generator.seed()
    assert first != second
    assert generator.initial_seed() == second


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) - 1, (1 << 64) - 1])
def test_seeds_use_all_64_bits(seed):
    assert words(torch.Generator("kunlun").manual_seed(seed).get_state())[0] == seed


def test_wrong_states_are_refused():
    generator = torch.Generator("kunlun").manual_seed(3)
    with pytest.raises(ValueError, match="multiple of 4, got 3"):
        generator.set_offset(3)
    with pytest.raises(ValueError, match="has 16 bytes, got 8"):
        generator.set_state(torch.zeros(8, dtype=torch.uint8))
    with pytest.raises(TypeError, match="ByteTensor"):
        generator.set_state(torch.zeros(16))
    with pytest.raises(ValueError, match="multiple of 4"):
        generator.set_state(torch.tensor([0] * 8 + [1] + [0] * 7, dtype=torch.uint8))
    assert words(generator.get_state()) == (3, 0)


def test_generators_belong_to_a_device(two_devices):
    assert torch.Generator("kunlun").device == torch.device("kunlun:0")
    assert torch.Generator("kunlun:1").device == torch.device("kunlun:1")
    torch.kunlun.set_device(1)
    assert torch.Generator("kunlun").device == torch.device("kunlun:1")


def test_clones_go_their_own_way():
    generator = torch.Generator("kunlun").manual_seed(9)
    clone = generator.clone_state()
    clone.manual_seed(10)
    assert generator.initial_seed() == 9


def test_a_graphsafe_state_is_shared():
    generator = torch.Generator("kunlun").manual_seed(9)
    other = torch.Generator("kunlun")
    other.graphsafe_set_state(generator.graphsafe_get_state())
    generator.set_offset(12)
    assert (other.initial_seed(), other.get_offset()) == (9, 12)
    with pytest.raises(TypeError, match="kunlun generator"):
        other.graphsafe_set_state(torch.Generator("cpu"))


def test_default_generators():
    generators = torch.kunlun.default_generators
    assert len(generators) == torch.kunlun.device_count()
    assert [generator.device.index for generator in generators] == list(range(len(generators)))
    assert torch.kunlun._get_generator(torch.device("kunlun:0")) is torch.kunlun.default_generators[0]


def test_seeds_of_the_module(two_devices):
    torch.manual_seed(11)
    assert [words(state) for state in torch.kunlun.get_rng_state_all()] == [(11, 0)] * torch.kunlun.device_count()
    torch.kunlun.manual_seed(12)
    assert torch.kunlun.initial_seed() == 12
    assert words(torch.kunlun.get_rng_state(1)) == (11, 0)
    torch.kunlun.manual_seed_all(13)
    assert words(torch.kunlun.get_rng_state("kunlun:1")) == (13, 0)
    torch.kunlun.seed_all()
    assert torch.kunlun.get_rng_state(0).tolist() == torch.kunlun.get_rng_state(1).tolist()
    torch.kunlun.seed()
    assert torch.kunlun.get_rng_state(0).tolist() != torch.kunlun.get_rng_state(1).tolist()


def test_states_of_the_module():
    torch.kunlun.manual_seed_all(21)
    states = torch.kunlun.get_rng_state_all()
    torch.kunlun.seed_all()
    torch.kunlun.set_rng_state_all(states)
    assert torch.kunlun.initial_seed() == 21
    with torch.random.fork_rng(devices=range(torch.kunlun.device_count()), device_type="kunlun"):
        torch.kunlun.manual_seed(22)
    assert torch.kunlun.initial_seed() == 21


def test_random_numbers_repeat_from_the_seed():
    torch.kunlun.manual_seed(3)
    first = torch.randn(1000, device="kunlun").cpu()
    offset = words(torch.kunlun.get_rng_state())[1]
    assert offset > 0
    assert offset % 4 == 0
    second = torch.randn(1000, device="kunlun").cpu()
    torch.kunlun.manual_seed(3)
    assert torch.equal(torch.randn(1000, device="kunlun").cpu(), first)
    assert torch.equal(torch.randn(1000, device="kunlun").cpu(), second)
    assert not torch.equal(first, second)


def test_an_own_generator_is_used():
    default = words(torch.kunlun.get_rng_state())
    generator = torch.Generator("kunlun").manual_seed(3)
    first = torch.rand(10, device="kunlun", generator=generator)
    assert words(torch.kunlun.get_rng_state()) == default
    generator.manual_seed(3)
    assert torch.equal(torch.rand(10, device="kunlun", generator=generator).cpu(), first.cpu())


def test_fork_rng_gives_every_state_back(two_devices):
    torch.manual_seed(3)
    expected = [torch.randn(4, device=f"kunlun:{index}") for index in (0, 1)] + [torch.randn(4)]
    torch.manual_seed(3)
    with torch.random.fork_rng(device_type="kunlun"):
        torch.manual_seed(99)
        for index in (0, 1):
            torch.randn(100, device=f"kunlun:{index}")
        torch.randn(100)
    again = [torch.randn(4, device=f"kunlun:{index}") for index in (0, 1)] + [torch.randn(4)]
    assert all(torch.equal(one, two) for one, two in zip(again, expected, strict=True))
    with torch.random.fork_rng(devices=[1], device_type="kunlun"):
        torch.kunlun.manual_seed_all(5)
    assert torch.kunlun.get_rng_state(0).tolist() == torch.Generator("kunlun").manual_seed(5).get_state().tolist()
    assert torch.kunlun.get_rng_state(1).tolist() != torch.kunlun.get_rng_state(0).tolist()
    with torch.random.fork_rng(enabled=False, device_type="kunlun"):
        pass
