// Tensor files: what is written comes back bit for bit, and no file, however it lies, is more than an error.
#include "io/tensor_file.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "io/file_access.hpp"
#include "temporary_folder.hpp"

namespace flashdelta {
namespace {

using Kind = FileError::Kind;

// ---- Files byte by byte ----

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; i++) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string safetensors(const std::string& header, size_t data_bytes) {
  return little_endian(header.size(), 8) + header + std::string(data_bytes, '\x01');
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":{}}})", dtype, shape, offsets);
}

std::string npy(int major, const std::string& dict, size_t data_bytes) {
  const std::string length = little_endian(dict.size(), major == 1 ? 2 : 4);
  return std::string("\x93NUMPY") + static_cast<char>(major) + '\0' + length + dict + std::string(data_bytes, '\x01');
}

class TensorFile : public testing::Test {
 protected:
  std::string file(const std::string& bytes, const std::string& name = "in.safetensors") {
    return folder_.write(name, bytes);
  }

  // A file is refused as wrong content, in one line that names the path and holds every one of `words`.
  void expect_malformed(const std::string& bytes, const std::vector<std::string>& words,
                        const std::string& name = "in.safetensors") {
    TensorMap tensors;
    std::vector<std::string> ignored;
    const FileError error = read_tensors(file(bytes, name), &tensors, &ignored);
    EXPECT_EQ(error.kind, Kind::malformed) << error.message;
    EXPECT_NE(error.message.find(name), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
    EXPECT_LT(error.message.size(), 1200u);
    for (const std::string& word : words) {
      EXPECT_NE(error.message.find(word), std::string::npos) << "no '" << word << "' in: " << error.message;
    }
  }

  TensorMap expect_read(const std::string& bytes, const std::string& name = "in.safetensors") {
    TensorMap tensors;
    const FileError error = read_tensors(file(bytes, name), &tensors, &ignored_);
    EXPECT_TRUE(error.ok()) << error.message;
    return tensors;
  }

  TemporaryFolder folder_;
  std::vector<std::string> ignored_;
};

HostTensor counted(flashdelta_dtype dtype, std::vector<int64_t> shape) {
  HostTensor tensor(dtype, std::move(shape));
  auto* bytes = static_cast<unsigned char*>(tensor.data());
  for (size_t i = 0; i < tensor.bytes(); i++) bytes[i] = static_cast<unsigned char>(i * 7 + 3);
  return tensor;
}

void expect_same(const TensorMap& expected, const TensorMap& got) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    const HostTensor& other = got.at(name);
    EXPECT_EQ(other.dtype(), tensor.dtype()) << name;
    EXPECT_EQ(other.shape(), tensor.shape()) << name;
    EXPECT_EQ(std::memcmp(other.data(), tensor.data(), tensor.bytes()), 0) << name;
  }
}

// ---- What is right ----

TEST_F(TensorFile, EveryDtypeComesBackBitForBit) {
  TensorMap tensors;
  for (const auto dtype : {FLASHDELTA_BF16, FLASHDELTA_FP16, FLASHDELTA_FP32, FLASHDELTA_INT32, FLASHDELTA_INT64}) {
    const std::string name = dtype_name(dtype);
    tensors[name] = counted(dtype, {3, 5});
    tensors[name + " empty"] = counted(dtype, {4, 0, 2});
    tensors[name + " scalar"] = counted(dtype, {});
    tensors[name + " deep"] = counted(dtype, {1, 2, 1, 3, 1});
  }
  tensors["a \"quoted\"\nname \xc3\xa9"] = counted(FLASHDELTA_FP16, {1});
  const std::string path = folder_.path("out.safetensors");
  ASSERT_TRUE(write_tensors(path, tensors).ok());
  TensorMap got;
  const FileError error = read_tensors(path, &got, nullptr);
  ASSERT_TRUE(error.ok()) << error.message;
  expect_same(tensors, got);
}

TEST_F(TensorFile, WrittenTensorsAreAligned) {
  TensorMap tensors{{"a", counted(FLASHDELTA_FP16, {3})}, {"b", counted(FLASHDELTA_INT64, {1})}};
  const std::string path = folder_.path("out.safetensors");
  ASSERT_TRUE(write_tensors(path, tensors).ok());
  const std::string bytes = folder_.read("out.safetensors");
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0);
  EXPECT_NE(bytes.find(R"("data_offsets":[0,8])"), std::string::npos) << bytes;  // the int64 comes first
}

TEST_F(TensorFile, NoTensorsIsAFile) {
  EXPECT_TRUE(expect_read(safetensors("{}", 0)).empty());
  const std::string path = folder_.path("out.safetensors");
  ASSERT_TRUE(write_tensors(path, {}).ok());
  EXPECT_TRUE(expect_read(folder_.read("out.safetensors")).empty());
}

TEST_F(TensorFile, MetadataAndPaddingAreSkipped) {
  const TensorMap got = expect_read(
      safetensors(R"({"__metadata__":{"op":"x","q":"y"},"q":)" + entry("F16", "[2]", "[0,4]") + "}      ", 4));
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got.at("q").dtype(), FLASHDELTA_FP16);
}

TEST_F(TensorFile, OtherDtypesAreCheckedAndListed) {
  std::string header = "{";
  size_t end = 0;
  const std::vector<std::pair<std::string, size_t>> others{{"F64", 8},  {"C64", 8},     {"U64", 8},     {"U32", 4},
                                                           {"I16", 2},  {"U16", 2},     {"I8", 1},      {"U8", 1},
                                                           {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [dtype, size] : others) {
    header += fmt::format(R"("x{}":{},)", dtype, entry(dtype, "[3]", fmt::format("[{},{}]", end, end + 3 * size)));
    end += 3 * size;
    expect_malformed(
        safetensors(R"({"x":)" + entry(dtype, "[3]", fmt::format("[0,{}]", 3 * size + 1)) + "}", 3 * size + 1),
        {"'x'", dtype, std::to_string(3 * size), std::to_string(3 * size + 1)});
  }
  header += R"("four":)" + entry("F4", "[4]", fmt::format("[{},{}]", end, end + 2)) + ",";
  header += R"("q":)" + entry("I32", "[1]", fmt::format("[{},{}]", end + 2, end + 6)) + "}";
  const TensorMap got = expect_read(safetensors(header, end + 6));
  EXPECT_EQ(got.size(), 1u);
  EXPECT_EQ(got.at("q").get_int(0), 0x01010101);
  EXPECT_EQ(ignored_.size(), others.size() + 1);
  EXPECT_EQ(ignored_.front(), "xF64: dtype F64");
  expect_malformed(safetensors(R"({"x":)" + entry("F4", "[3]", "[0,2]") + "}", 2), {"whole bytes", "F4 [3]"});
}

TEST_F(TensorFile, MoreDimensionsThanAViewHasAreListed) {
  const TensorMap got = expect_read(safetensors(R"({"x":)" + entry("F32", "[1,1,1,1,1,1]", "[0,4]") + "}", 4));
  EXPECT_TRUE(got.empty());
  ASSERT_EQ(ignored_.size(), 1u);
  EXPECT_EQ(ignored_[0], "x: 6 dimensions");
}

// ---- Hostile safetensors ----

TEST_F(TensorFile, LengthsThatLie) {
  expect_malformed("", {"8 bytes", "0 bytes"});
  expect_malformed("1234567", {"7 bytes"});
  expect_malformed(little_endian(0, 8), {"JSON object", "no byte"});
  expect_malformed(little_endian(100'000'001, 8) + "{}", {"100000000", "100000001"});
  expect_malformed(little_endian(UINT64_MAX, 8) + "{}", {"18446744073709551615"});
  expect_malformed(little_endian(3, 8) + "{}", {"header length", "remaining 2 bytes", "got 3"});
  const std::string right = safetensors(R"({"q":)" + entry("F32", "[2]", "[0,8]") + "}", 8);
  for (size_t cut = 0; cut < right.size(); cut++) expect_malformed(right.substr(0, cut), {});
  expect_malformed(right + "x", {"expected 8 bytes of data", "got 9"});
}

TEST_F(TensorFile, TextsThatAreNoHeader) {
  for (const char* text : {"[]", "1", "\"q\"", "null", " {}", "x"}) {
    expect_malformed(safetensors(text, 0), {"header", "JSON object"});
  }
  for (const char* text : {"{", "{}x", "{\"q\"", "{\"q\":", "{\"q\":}", "{'q':1}", "{\"q\xff\":{}}", "{}{}", "{,}"}) {
    expect_malformed(safetensors(text, 0), {"header", "JSON"});
  }
  expect_malformed(safetensors(std::string("{}\0{", 4), 0), {"zero byte at 2"});
  expect_malformed(safetensors(R"({"q":)" + std::string(1'000'000, '[') + "}", 0), {"'q'", "an object", "an array"});
  std::string bomb;
  for (int i = 0; i < 100'000; i++) bomb += "{\"a\":";
  expect_malformed(safetensors(bomb, 0), {"'a'"});
}

TEST_F(TensorFile, EntriesThatAreNoTensor) {
  for (const char* value : {"1", "\"F32\"", "[]", "null", "true", "1.5", "-1"}) {
    expect_malformed(safetensors(fmt::format(R"({{"q":{}}})", value), 0), {"'q'", "an object"});
  }
  const auto one = [](const std::string& body) { return safetensors(R"({"q":{)" + body + "}}", 4); };
  const std::string dtype = R"("dtype":"F32")", shape = R"("shape":[1])", offsets = R"("data_offsets":[0,4])";
  EXPECT_EQ(expect_read(one(offsets + "," + shape + "," + dtype)).size(), 1u);
  expect_malformed(one(""), {"'q'", "no dtype"});
  expect_malformed(one(dtype + "," + offsets), {"'q'", "no shape"});
  expect_malformed(one(dtype + "," + shape), {"'q'", "no data_offsets"});
  expect_malformed(one(dtype + "," + shape + "," + offsets + "," + dtype), {"'q'", "a second 'dtype'"});
  expect_malformed(one(dtype + R"(,"extra":{"deep":[1]})"), {"'q'", "'extra'"});
  expect_malformed(one(R"("dtype":4,)" + shape + "," + offsets), {"'q'", "dtype", "a string", "got 4"});
  expect_malformed(one(R"("dtype":"F33",)" + shape + "," + offsets), {"'q'", "'F33'"});
  expect_malformed(one(R"("dtype":"f32",)" + shape + "," + offsets), {"'q'", "'f32'"});
  for (const char* wrong : {"-1", "1.0", "1e2", "-0", "\"1\"", "null", "true", "[1]", "{}", "1e999"}) {
    expect_malformed(one(dtype + "," + offsets + fmt::format(R"(,"shape":[{}])", wrong)), {});
    expect_malformed(one(dtype + "," + shape + fmt::format(R"(,"data_offsets":[0,{}])", wrong)), {});
  }
  expect_malformed(one(dtype + "," + offsets + R"(,"shape":[-1])"), {"'q'", "shape", "whole numbers", "-1"});
  expect_malformed(one(dtype + "," + shape + R"(,"data_offsets":[0,4.5])"), {"'q'", "data_offsets", "4.5"});
  expect_malformed(one(dtype + "," + shape + R"(,"data_offsets":[0])"), {"'q'", "two numbers", "got 1"});
  expect_malformed(one(dtype + "," + shape + R"(,"data_offsets":[0,4,4])"), {"'q'", "two numbers", "more"});
  expect_malformed(one(dtype + "," + shape + R"(,"data_offsets":4)"), {"'q'", "an array", "got 4"});
  std::string many = "[1";
  for (int i = 0; i < 64; i++) many += ",1";
  expect_malformed(one(dtype + "," + offsets + R"(,"shape":)" + many + "]"), {"'q'", "64 dimensions"});
}

TEST_F(TensorFile, NamesTwice) {
  const std::string value = entry("F32", "[0]", "[0,0]");
  expect_malformed(safetensors(fmt::format(R"({{"q":{0},"k":{0},"q":{0}}})", value), 0), {"'q'", "twice"});
  expect_malformed(safetensors(R"({"__metadata__":{},"__metadata__":{}})", 0), {"'__metadata__'", "twice"});
  expect_malformed(safetensors(R"({"__metadata__":{"a":"1","a":"2"}})", 0), {"'a'", "twice"});
}

TEST_F(TensorFile, MetadataThatIsNoText) {
  for (const char* value : {"1", "null", "true", "[]", "{}", "-1", "0.5"}) {
    expect_malformed(safetensors(fmt::format(R"({{"__metadata__":{{"a":{}}}}})", value), 0),
                     {"__metadata__", "'a'", "a string"});
  }
  expect_malformed(safetensors(R"({"__metadata__":"x"})", 0), {"__metadata__", "an object", "'x'"});
}

TEST_F(TensorFile, RangesThatLie) {
  const auto one = [](const std::string& shape, const std::string& offsets, size_t data) {
    return safetensors(R"({"q":)" + entry("F32", shape, offsets) + "}", data);
  };
  expect_malformed(one("[2]", "[0,4]", 4), {"'q'", "expected 8 bytes", "F32 [2]", "got 4"});
  expect_malformed(one("[1]", "[0,8]", 8), {"'q'", "expected 4 bytes", "got 8"});
  expect_malformed(one("[1]", "[4,0]", 4), {"'q'", "begin at most end", "[4, 0]"});
  expect_malformed(one("[1]", "[4,8]", 4), {"'q'", "4 bytes of data", "got 8"});
  expect_malformed(one("[1]", "[18446744073709551612,18446744073709551615]", 4), {"'q'", "18446744073709551615"});
  expect_malformed(one("[1]", "[0,18446744073709551616]", 4), {"'q'", "whole numbers", "18446744073709551616"});
  expect_malformed(one("[1]", "[1,5]", 5), {"'q'", "no gap", "begin 0", "got begin 1"});
  const auto two = [](const std::string& second) {
    return safetensors(R"({"q":)" + entry("F32", "[1]", "[0,4]") + R"(,"k":)" + second + "}", 8);
  };
  EXPECT_EQ(expect_read(two(entry("F32", "[1]", "[4,8]"))).size(), 2u);
  expect_malformed(two(entry("F32", "[1]", "[2,6]")), {"'q' and 'k' overlap", "got 2"});
  expect_malformed(two(entry("F32", "[1]", "[0,4]")), {"overlap"});
  expect_malformed(two(entry("F16", "[1]", "[6,8]")), {"'k'", "no gap", "begin 4", "got begin 6"});
  expect_malformed(two(entry("F16", "[1]", "[4,6]")), {"expected 6 bytes of data", "got 8"});
}

TEST_F(TensorFile, ShapesThatOverflow) {
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return safetensors(R"({"q":)" + entry("F32", shape, offsets) + "}", 0);
  };
  expect_malformed(one("[4294967296,4294967296]", "[0,0]"), {"'q'", "4294967296,4294967296"});
  expect_malformed(one("[9223372036854775807]", "[0,0]"), {"'q'", "9223372036854775807"});
  expect_malformed(one("[9223372036854775808]", "[0,0]"), {"'q'", "9223372036854775808"});
  expect_malformed(one("[18446744073709551616]", "[0,0]"), {"'q'", "18446744073709551616"});
  expect_malformed(one("[0,4294967296,4294967296]", "[0,0]"), {"'q'", "4294967296"});
  expect_malformed(one("[2,4611686018427387904]", "[0,0]"), {"'q'"});  // 4 bytes each: wraps to 0
  EXPECT_EQ(expect_read(one("[0,1000000]", "[0,0]")).size(), 1u);
}

TEST_F(TensorFile, NamesCannotForgeLines) {
  expect_malformed(safetensors(R"({"q\u001b[2J\nflashdelta: all is well":1})", 0), {"\\x1b", "\\x0a"});
  expect_malformed(safetensors(R"({")" + std::string(1'000'000, 'n') + R"(":1})", 0), {"..."});
}

// Any change of bytes is an error or a set of tensors that lie within the file.
TEST_F(TensorFile, MutatedHeadersNeverPassTheFile) {
  const std::string right =
      safetensors(R"({"__metadata__":{"a":"b"},"q":)" + entry("BF16", "[2,4]", "[0,16]") + R"(,"n":)" +
                      entry("I64", "[0]", "[16,16]") + R"(,"z":)" + entry("F64", "[1]", "[16,24]") + "}  ",
                  24);
  ASSERT_EQ(expect_read(right).size(), 2u);
  rc::check([&] {
    std::string bytes = right;
    const int edits = *rc::gen::inRange(1, 4);
    for (int i = 0; i < edits; i++) {
      const auto place = *rc::gen::inRange<size_t>(0, bytes.size());
      const std::string interesting = "0123456789-.e\"{}[]:, \\u\xff";
      const char byte = *rc::gen::oneOf(rc::gen::arbitrary<char>(), rc::gen::elementOf(interesting));
      switch (*rc::gen::inRange(0, 3)) {
        case 0: bytes[place] = byte; break;
        case 1: bytes.insert(place, 1, byte); break;
        default: bytes.erase(place, 1);
      }
      if (bytes.empty()) break;
    }
    TensorMap tensors;
    const FileError error = read_tensors(file(bytes), &tensors, nullptr);
    size_t total = 0;
    for (const auto& [name, tensor] : tensors) total += tensor.bytes();
    RC_ASSERT(total <= bytes.size());
    RC_ASSERT(error.ok() || (error.kind == Kind::malformed && !error.message.empty() &&
                             error.message.find('\n') == std::string::npos));
  });
}

// ---- .npy ----

const std::string right_dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }       \n";

TEST_F(TensorFile, NpyVersionsAndDtypes) {
  for (const int major : {1, 2, 3}) {
    const TensorMap got = expect_read(npy(major, right_dict, 24), "q.npy");
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got.at("q").shape(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(got.at("q").dtype(), FLASHDELTA_FP32);
  }
  const std::vector<std::tuple<const char*, flashdelta_dtype, size_t>> dtypes{
      {"<f2", FLASHDELTA_FP16, 2}, {"<i4", FLASHDELTA_INT32, 4}, {"<i8", FLASHDELTA_INT64, 8}};
  for (const auto& [descr, dtype, size] : dtypes) {
    const auto dict = fmt::format("{{\"shape\": (5,), 'fortran_order':False,'descr': \"{}\"}}", descr);
    EXPECT_EQ(expect_read(npy(1, dict, 5 * size), "cu_seqlens.npy").at("cu_seqlens").dtype(), dtype);
  }
  const auto scalar = npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()}", 4);
  EXPECT_TRUE(expect_read(scalar, "s.npy").at("s").shape().empty());
  EXPECT_EQ(expect_read(npy(1, right_dict, 24), "no_ending").count("no_ending"), 1u);
}

TEST_F(TensorFile, NpyThatLies) {
  const auto dict = [](const char* descr, const char* fortran, const char* shape) {
    return fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}", descr, fortran, shape);
  };
  const auto bad = [&](const std::string& bytes, const std::vector<std::string>& words) {
    expect_malformed(bytes, words, "q.npy");
  };
  bad(npy(1, dict("'<f4'", "True", "(2, 3)"), 24), {"fortran_order", "C order", "True"});
  bad(npy(1, dict("'>f4'", "False", "(2, 3)"), 24), {"descr", "'>f4'"});
  bad(npy(1, dict("'<f8'", "False", "(3,)"), 24), {"descr", "'<f8'"});
  bad(npy(1, dict("[('a', '<f4')]", "False", "(3,)"), 12), {"descr"});
  bad(npy(1, dict("'<f4'", "0", "(3,)"), 12), {"fortran_order"});
  for (const char* shape : {"(-1,)", "(1.5,)", "[3]", "3", "(3", "(3,,)", "(99999999999999999999,)", "('3',)"}) {
    bad(npy(1, dict("'<f4'", "False", shape), 12), {"header"});
  }
  bad(npy(1, dict("'<f4'", "False", "(4294967296, 4294967296)"), 12), {"4294967296", "12"});
  bad(npy(1, dict("'<f4'", "False", "(0, 4294967296, 4294967296)"), 0), {"4294967296"});
  bad(npy(1, dict("'<f4'", "False", "(1,1,1,1,1,1)"), 4), {"5 dimensions", "got 6"});
  bad(npy(1, right_dict, 23), {"24 bytes", "23"});
  bad(npy(1, right_dict, 25), {"24 bytes", "25"});
  bad(npy(4, right_dict, 24), {"version", "4"});
  bad(npy(0, right_dict, 24), {"version", "0"});
  bad(npy(1, "{'descr': '<f4', 'shape': (2, 3)}", 24), {"fortran_order"});
  bad(npy(1, "{'descr': '<f4', 'descr': '<f4'}", 24), {"once"});
  bad(npy(1, right_dict + "x", 24), {"nothing after"});
  bad("not an array", {"NUMPY"});
  bad("\x93NUMPY\x01", {"7 bytes"});
  bad(std::string("\x93NUMPY\x02\x00", 8) + little_endian(UINT32_MAX, 4), {"header length", "4294967295"});
  const std::string right = npy(3, right_dict, 24);
  for (size_t cut = 0; cut < right.size(); cut++) bad(right.substr(0, cut), {});
}

TEST_F(TensorFile, TheSameNameFromTwoFiles) {
  TensorMap tensors;
  ASSERT_TRUE(read_tensors(file(npy(1, right_dict, 24), "q.npy"), &tensors, nullptr).ok());
  const FileError error = read_tensors(folder_.path("q.npy"), &tensors, nullptr);
  EXPECT_EQ(error.kind, Kind::malformed);
  EXPECT_NE(error.message.find("'q'"), std::string::npos) << error.message;
}

// ---- The file system ----

TEST_F(TensorFile, WhatCannotBeRead) {
  TensorMap tensors;
  ASSERT_EQ(::mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  for (const std::string& path :
       {folder_.path("missing"), folder_.path("."), std::string("/dev/null"), std::string(), folder_.path("pipe")}) {
    EXPECT_EQ(read_tensors(path, &tensors, nullptr).kind, Kind::unreadable) << path;
  }
}

TEST_F(TensorFile, WhatCannotBeWritten) {
  const TensorMap tensors{{"o", counted(FLASHDELTA_FP32, {1 << 16})}};
  folder_.write("file", "x");
  for (const std::string& path : {folder_.path("missing/out"), folder_.path("file/out"), folder_.path("."),
                                  folder_.path("new/"), std::string("/dev/full"), std::string()}) {
    EXPECT_EQ(write_tensors(path, tensors).kind, Kind::unwritable) << path;
    if (path == "/dev/full") continue;
    EXPECT_EQ(check_output(path).kind, Kind::unwritable) << path;
  }
  EXPECT_TRUE(check_output(folder_.path("new")).ok());
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"file"});
}

TEST_F(TensorFile, AReplacedFileIsWholeAndAlone) {
  const TensorMap tensors{{"o", counted(FLASHDELTA_FP32, {3})}};
  folder_.write("out", "old");
  ::umask(027);
  ASSERT_TRUE(write_tensors(folder_.path("out"), tensors).ok());
  ::umask(022);
  expect_same(tensors, expect_read(folder_.read("out")));
  struct stat status {};
  ASSERT_EQ(::stat(folder_.path("out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"in.safetensors", "out"}));
}

TEST_F(TensorFile, ALinksTargetIsReplaced) {
  const TensorMap tensors{{"o", counted(FLASHDELTA_FP32, {3})}};
  std::filesystem::create_directory(folder_.path("there"));
  folder_.write("there/real", "old");
  std::filesystem::create_symlink("there/real", folder_.path("link"));
  std::filesystem::create_symlink("there/new", folder_.path("dangling"));
  std::filesystem::create_symlink("loop", folder_.path("loop"));
  ASSERT_TRUE(write_tensors(folder_.path("link"), tensors).ok());
  ASSERT_TRUE(write_tensors(folder_.path("dangling"), tensors).ok());
  EXPECT_EQ(write_tensors(folder_.path("loop"), tensors).kind, Kind::unwritable);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("dangling")));
  expect_same(tensors, expect_read(folder_.read("there/real")));
  expect_same(tensors, expect_read(folder_.read("there/new")));
}

// What a signal handler does in the middle of a write.
TEST_F(TensorFile, AnInterruptedWriteLeavesTheOldFile) {
  folder_.write("out", "old");
  OutputFile output;
  ASSERT_TRUE(output.open(folder_.path("out")).ok());
  ASSERT_TRUE(output.write("half", 4).ok());
  EXPECT_EQ(folder_.names().size(), 2u);
  remove_partial_output();
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"out"});
  EXPECT_EQ(folder_.read("out"), "old");
}

TEST_F(TensorFile, NamesThatAreNoUtf8AreNotWritten) {
  const TensorMap tensors{{"o\xff", counted(FLASHDELTA_FP32, {3})}};
  EXPECT_EQ(write_tensors(folder_.path("out"), tensors).kind, Kind::unwritable);
  EXPECT_TRUE(folder_.names().empty());
}

}  // namespace
}  // namespace flashdelta
