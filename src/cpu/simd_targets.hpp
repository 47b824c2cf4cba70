// Included before hwy/foreach_target.h by every file with vector code, so that all are compiled for the same
// instruction sets. SSSE3 alone is not worth its compile time.
#pragma once

#define HWY_DISABLED_TARGETS HWY_SSSE3
