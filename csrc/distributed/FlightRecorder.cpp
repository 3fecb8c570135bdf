// The ring of operations.
#include "distributed/FlightRecorder.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include <c10/util/ApproximateClock.h>

#include "runtime/EnvXccl.h"

namespace kunlun::distributed {

namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<std::vector<int64_t>> sizesOf(const Tensors& tensors) {
  std::vector<std::vector<int64_t>> sizes;
  for (const auto& tensor : tensors) {
    sizes.push_back(tensor.sizes().vec());
  }
  return sizes;
}

std::vector<std::string> dtypesOf(const Tensors& tensors) {
  std::vector<std::string> dtypes;
  for (const auto& tensor : tensors) {
    dtypes.emplace_back(c10::toString(tensor.scalar_type()));
  }
  return dtypes;
}

} // namespace

FlightRecorder& FlightRecorder::get() {
  static FlightRecorder& value = *new FlightRecorder; // tracebacks must not end after the interpreter
  return value;
}

FlightRecorder::FlightRecorder()
    : capacity_(static_cast<size_t>(xcclEnv().trace_entries)), file_(xcclEnv().trace_file) {}

void FlightRecorder::recordGroup(
    const std::string& name,
    const std::string& description,
    const std::vector<uint64_t>& ranks) {
  std::lock_guard lock(lock_);
  for (auto& group : groups_) {
    if (group.name == name) {
      group = {name, description, ranks};
      return;
    }
  }
  groups_.push_back({name, description, ranks});
}

void FlightRecorder::record(Entry entry) {
  auto record = std::make_shared<Record>();
  record->input_sizes = sizesOf(entry.inputs);
  record->output_sizes = sizesOf(entry.outputs);
  record->input_dtypes = dtypesOf(entry.inputs);
  record->output_dtypes = dtypesOf(entry.outputs);
  record->traceback = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
  record->created_ns = c10::getTime();
  entry.inputs.clear(); // keeps no memory
  entry.outputs.clear();
  record->entry = std::move(entry);
  std::shared_ptr<const Record> replaced; // freed without the lock: its traceback may take the interpreter's
  std::lock_guard lock(lock_);
  record->id = next_id_++;
  if (records_.size() < capacity_) {
    records_.push_back(std::move(record));
  } else {
    replaced = std::exchange(records_[record->id % capacity_], record);
  }
}

std::vector<std::shared_ptr<const FlightRecorder::Record>> FlightRecorder::records() {
  std::lock_guard lock(lock_);
  auto records = records_;
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a->id < b->id; });
  return records;
}

std::vector<FlightRecorder::Group> FlightRecorder::groups() {
  std::lock_guard lock(lock_);
  return groups_;
}

void FlightRecorder::dumpToFile(uint64_t rank) {
  if (!isOn() || file_.empty() || pickle_ == nullptr) {
    return;
  }
  const std::string name = file_ + std::to_string(rank);
  const std::string unfinished = name + ".new"; // whoever sees the file sees all of it
  std::ofstream out(unfinished, std::ios::binary);
  out << pickle_(/*include_stacks=*/true, /*only_active=*/false);
  out.close();
  if (!out || std::rename(unfinished.c_str(), name.c_str()) != 0) {
    std::fprintf(stderr, "kunlun: cannot write the flight recorder's file %s\n", name.c_str());
  }
}

} // namespace kunlun::distributed
