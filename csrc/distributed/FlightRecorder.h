// What the process groups have done lately, in the format that torch's analyser reads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include "distributed/Completion.h"

namespace kunlun::distributed {

// A ring of the last operations of all groups of the process. torch ships the interface of its own recorder but not
// all that its templates need, so this one writes the same file (version 2.10 of the format):
// `python -m torch.distributed.flight_recorder.fr_trace` reads it. The form of the file is the Python module's
// business.
class FlightRecorder {
 public:
  struct Entry {
    size_t group_id = 0;
    std::pair<std::string, std::string> group; // name and description
    uint64_t collective_sequence = 0;
    uint64_t transfer_sequence = 0;
    uint64_t operation = 0; // counts the members of batches too
    std::string name;
    bool is_transfer = false;
    int64_t timeout_ms = 0;
    std::vector<at::Tensor> inputs; // only looked at by record()
    std::vector<at::Tensor> outputs;
    c10::intrusive_ptr<Completion> completion;
  };

  struct Record {
    size_t id;
    Entry entry;
    std::vector<std::vector<int64_t>> input_sizes, output_sizes;
    std::vector<std::string> input_dtypes, output_dtypes;
    std::shared_ptr<torch::CapturedTraceback> traceback;
    int64_t created_ns;
  };

  struct Group {
    std::string name, description;
    std::vector<uint64_t> ranks;
  };

  static FlightRecorder& get();

  bool isOn() const {
    return capacity_ != 0;
  }
  void recordGroup(const std::string& name, const std::string& description, const std::vector<uint64_t>& ranks);
  void record(Entry entry);
  // Oldest first.
  std::vector<std::shared_ptr<const Record>> records();
  std::vector<Group> groups();

  // Who makes a file's contents of it. Set once, at the import of the module.
  using Pickle = std::string (*)(bool include_stacks, bool only_active);
  static void setPickle(Pickle pickle) {
    pickle_ = pickle;
  }
  // Writes XCCL_TRACE_FILE with `rank` behind it; does nothing where that is not set. Takes the interpreter's lock.
  void dumpToFile(uint64_t rank);

 private:
  FlightRecorder();

  const size_t capacity_;
  const std::string file_;
  static inline Pickle pickle_ = nullptr;
  std::mutex lock_; // guards everything below
  std::vector<std::shared_ptr<const Record>> records_;
  size_t next_id_ = 0;
  std::vector<Group> groups_;
};

} // namespace kunlun::distributed
