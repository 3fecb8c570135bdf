// One thread for all process groups, which ends what takes longer than its timeout.
#pragma once

namespace kunlun::distributed {

class ProcessGroupXCCL;

namespace watchdog {

// The thread starts with the first group and sleeps while no group has work.
void add(ProcessGroupXCCL* group);
// Returns when the thread has nothing to do with the group any more.
void remove(ProcessGroupXCCL* group);
// A group that was idle has work.
void notify();

} // namespace watchdog
} // namespace kunlun::distributed
