#pragma once

namespace c10::cuda {

int device_count() noexcept;

}  // namespace c10::cuda
