// The chip in the life of its process: start, fork, exit.
#pragma once

namespace kunlun::sim {

// Once, before the first device: protection, fork and exit handlers.
void startProcess();

} // namespace kunlun::sim
