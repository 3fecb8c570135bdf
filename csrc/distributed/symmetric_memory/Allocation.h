// Memory that a group of ranks can share: a buffer, and behind it the words by which the ranks signal each other.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

namespace kunlun::distributed::symmetric_memory {

class Peers;

class Allocation {
 public:
  // From the driver, for whom an allocation is what other processes open. Raises OutOfMemoryError, after it has given
  // back what is idle in the caching allocator.
  Allocation(size_t bytes, c10::DeviceIndex device, std::optional<std::string> group_name);

  void* buffer() const {
    return storage_.mutable_data();
  }
  size_t bytes() const {
    return bytes_;
  }
  // Of the signal pad, from the start of the buffer.
  size_t padOffset() const {
    return pad_offset_;
  }
  size_t padBytes() const {
    return pad_bytes_;
  }
  c10::DeviceIndex device() const {
    return device_;
  }
  // What is lent to the other ranks. Whoever holds it keeps the memory; then it is freed once the device has done the
  // work that may use it.
  const c10::Storage& storage() const {
    return storage_;
  }
  // The group that it was made for, if any.
  const std::optional<std::string>& groupName() const {
    return group_name_;
  }

  // The ranks of a group that have met over this memory.
  std::shared_ptr<Peers> peers(const std::string& group_name);
  void setPeers(const std::string& group_name, std::shared_ptr<Peers> peers);

 private:
  const size_t bytes_;
  const size_t pad_offset_;
  const size_t pad_bytes_;
  const c10::DeviceIndex device_;
  const std::optional<std::string> group_name_;
  const c10::Storage storage_;

  std::mutex lock_; // guards peers_
  std::map<std::string, std::shared_ptr<Peers>> peers_;
};

} // namespace kunlun::distributed::symmetric_memory
