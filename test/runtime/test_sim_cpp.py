"""The simulated chip, tested from C++ without torch: order, events, memory, failures, fork, exit and protection."""

import signal

import pytest

# Cases that need a process of their own, with the environment they run in.
ALONE = {
    "out_of_memory_tells_the_numbers": {"KUNLUN_SIM_MEMORY": "64M"},
    "fresh_memory_is_poisoned": {"KUNLUN_SIM_POISON": "1"},
    "looking_at_devices_starts_nothing": {},
    "visible_devices_select_and_reorder": {"KUNLUN_VISIBLE_DEVICES": "1,0", "KUNLUN_SIM_DEVICES": "3"},
    "no_visible_device": {"KUNLUN_VISIBLE_DEVICES": ""},
    "a_visible_device_that_does_not_exist": {"KUNLUN_VISIBLE_DEVICES": "5"},
    "a_child_of_a_started_process_is_told": {},
    "device_memory_is_not_inherited": {},
    "shutdown_drops_what_is_left": {},
    "a_hanging_item_does_not_keep_the_process": {},
    "threads_that_cannot_start_are_an_error": {},
    "addresses_that_cannot_be_reserved_are_an_error": {"KUNLUN_SIM_MEMORY": "1T"},
}

# Sanitizers need more addresses than the first two leave, answer SIGSEGV themselves, and their allocator may be locked
# for ever in the child of a process with threads.
NOT_UNDER_SANITIZERS = {
    "threads_that_cannot_start_are_an_error",
    "addresses_that_cannot_be_reserved_are_an_error",
    "device_memory_is_not_inherited",
    "a_child_of_a_started_process_is_told",
}

# Cases that end by SIGSEGV, with what stderr must and must not say.
MESSAGE = "kunlun: host code touched kunlun device memory at 0x"
FAULTS = {
    "host_access_is_explained": ([MESSAGE, "(device 0, offset 0x1000)", "with .cpu()", "KUNLUN_SIM_PROTECT=off"], []),
    "host_access_to_mapped_addresses_is_explained": ([MESSAGE, "(device 0, offset 0x"], []),
    "addresses_without_memory_are_not_touched": (["kunlun: kunlun addresses without memory were touched"], [MESSAGE]),
    "host_access_with_an_earlier_handler": ([MESSAGE, "the earlier handler ran"], []),
    "host_access_with_a_later_handler": (["the later handler ran", MESSAGE], []),
    "another_fault_is_not_ours": ([], [MESSAGE]),
    "a_sent_signal_is_not_ours": ([], [MESSAGE]),
}


def check(result):
    assert result.returncode == 0, result.stderr


def test_every_case_is_run(programs):
    listed = programs.run("sim", "--list").stdout.splitlines()
    alone = {line.removesuffix(" alone") for line in listed if line.endswith(" alone")}
    assert alone == set(ALONE) | set(FAULTS)


def test_stress(programs):
    for _ in range(3):
        check(programs.run("sim"))


def test_stress_with_protected_memory(programs):
    check(programs.run("sim", KUNLUN_SIM_PROTECT="on"))


@pytest.mark.parametrize("case", ALONE)
def test_alone(programs, case):
    check(programs.run("sim", case, **ALONE[case]))


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_explained(programs, case):
    said, unsaid = FAULTS[case]
    # Pages that are protected in place of keys hide which addresses have memory.
    protect = "off" if case == "addresses_without_memory_are_not_touched" else "on"
    result = programs.run("sim", case, KUNLUN_SIM_PROTECT=protect)
    assert result.returncode == -signal.SIGSEGV, result.stderr
    position = 0
    for text in said:  # in this order
        assert text in result.stderr[position:], result.stderr
        position = result.stderr.index(text, position)
    for text in unsaid:
        assert text not in result.stderr


@pytest.mark.full
@pytest.mark.parametrize("sanitized_programs", ["thread", "address,undefined"], indirect=True)
def test_stress_under_sanitizers(sanitized_programs):
    for protect in ("off", "on"):
        for _ in range(3):
            check(sanitized_programs.run("sim", timeout=600, KUNLUN_SIM_PROTECT=protect))
    for case in ALONE.keys() - NOT_UNDER_SANITIZERS:
        check(sanitized_programs.run("sim", case, **ALONE[case]))
