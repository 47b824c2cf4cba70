// What of DLPack 1.x Debian's dlpack.h does not have yet: the versioned capsule, and the table of functions that a
// framework hangs on its array type as __dlpack_c_exchange_api__. Layouts as DLPack 1.3 fixes them.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>

namespace flashdelta::python {

struct DlpackVersion {
  uint32_t major, minor;
};

constexpr uint64_t kDlpackReadOnly = 1;

struct DlpackManagedVersioned {
  DlpackVersion version;
  void* manager_ctx;
  void (*deleter)(DlpackManagedVersioned*);
  uint64_t flags;
  DLTensor dl_tensor;
};

struct DlpackExchangeHeader {
  DlpackVersion version;
  DlpackExchangeHeader* previous;  // the table of an older major version
};

struct DlpackExchange {
  DlpackExchangeHeader header;
  int (*allocate)(DLTensor*, DlpackManagedVersioned**, void*, void (*)(void*, const char*, const char*));
  int (*managed_from_object)(void*, DlpackManagedVersioned**);
  int (*managed_to_object)(DlpackManagedVersioned*, void**);
  int (*tensor_from_object)(void*, DLTensor*);  // may be null; the view lives as long as the object
  int (*current_stream)(DLDeviceType, int32_t, void**);
};

}  // namespace flashdelta::python
