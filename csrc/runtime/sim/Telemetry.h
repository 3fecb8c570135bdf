// What the sensors of a card would say, as far as a simulated one can.
#pragma once

namespace kunlun::sim {

// A kl_telemetry of a device. Raises KL_ERROR_NOT_IMPLEMENTED for what only hardware has.
double measure(int device, int what);

} // namespace kunlun::sim
