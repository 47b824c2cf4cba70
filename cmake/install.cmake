# `make install`: library, headers, command line, and a CMake package: find_package(flashdelta), flashdelta::flashdelta.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashdelta)
install(TARGETS flashdelta EXPORT flashdelta_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS flashdelta_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/flashdelta DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT flashdelta_targets NAMESPACE flashdelta:: FILE flashdeltaConfig.cmake DESTINATION ${package_dir})
write_basic_package_version_file(flashdeltaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashdeltaConfigVersion.cmake DESTINATION ${package_dir})
