"""The loops of the simulated chip's reductions, for each instruction set that this CPU has."""


def test_every_instruction_set_gives_the_same_bits(programs):
    done = programs.run("reductions")
    assert done.returncode == 0, done.stdout + done.stderr
