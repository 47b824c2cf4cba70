// fmt's code, compiled once for the whole build: used header-only, every file that formats a line compiles it again,
// which is most of that file's time. Debian has fmt as a shared library only, and the library here links nothing that a
// user would have to have.
#include <fmt/format-inl.h>

// What fmt's headers leave to its one source file.
FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template FMT_API char decimal_point_impl<char>(locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
