// A stream that nobody else has.
#pragma once

#include "runtime/Stream.h"

namespace kunlun::distributed {

// Streams of the pool are shared by whoever asks. Where two communicators had the same one, ranks that use them in
// another order would wait in a circle. Such a stream lives as long as the process: it goes to the next owner, whose
// work comes behind what is left of the last one's.
class OwnStream {
 public:
  OwnStream(bool high_priority, c10::DeviceIndex device);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  const Stream& get() const {
    return stream_;
  }

 private:
  const bool high_priority_;
  const Stream stream_;
};

} // namespace kunlun::distributed
