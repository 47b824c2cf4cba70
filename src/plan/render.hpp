// A plan as the command line shows it: a request of names and numbers in, a struct of plain values out, and that struct
// as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/plan.hpp"

namespace flashdelta {

// What is asked for. make_plan checks all of it and names the member that is wrong.
struct PlanRequest {
  PlanOperation operation = PlanOperation::kAttentionForward;
  std::string arch;                          // "sm120", "120" or "sm_120"
  flashdelta_dtype dtype = FLASHDELTA_BF16;  // bf16, fp16 or fp32 (fp32: an answer, every candidate refused)
  int64_t head_dim = 0;                      // positive, at most 65536
  int64_t head_dim_v = 0;                    // 0: as head_dim
  std::optional<int64_t> seqlen;             // keys of a sequence, 0 allowed; absent: kv_iterations is absent too
  std::vector<Candidate> candidates;         // from parse_candidate; empty: the table's for this arch and head dims
};

// One candidate and its verdict. All bytes are bytes, not KiB.
struct CandidateReport {
  int64_t block_q = 0, block_kv = 0;
  int64_t block_v = 0;  // resolved: never 0
  int64_t warps = 0;    // threads / 32, rounded up
  int64_t threads = 0;
  int64_t stages = 0;  // resolved: never 0
  bool q_in_registers = false;
  int64_t padded_head_dim = 0;                         // columns of the Q and K tiles where padded; 0: no padding
  std::optional<std::string> kernel;                   // the kernel row's name; none: null in JSON
  int64_t shared_bytes = 0;                            // computed whether or not it fits
  std::vector<std::pair<std::string, int64_t>> parts;  // name -> bytes in order; they sum to shared_bytes
  int64_t resident_blocks = 0;                         // an SM; 0 where refused
  std::optional<int64_t> kv_iterations;                // none where the request has no seqlen: null in JSON
  bool fits = false;
  std::string reason;  // where refused: a stable snake_case name such as "shared_memory_over_limit"; "" where it fits
  std::string detail;  // where refused: one sentence with both numbers, for people; "" where it fits
};

struct PlanReport {
  std::string operation;     // "attention_forward" or "gated_delta_forward"
  std::string arch;          // "sm120", however the request spelt it
  std::string algorithm;     // "mma_sync_sm80"
  std::string target;        // "sm_120": what a kernel is compiled for
  std::string output_path;   // "vector_store" or "bulk_store"
  int64_t shared_limit = 0;  // shared memory a block, bytes
  std::string dtype;         // "bf16"
  int64_t head_dim = 0, head_dim_v = 0;
  std::optional<int64_t> seqlen;
  std::optional<size_t> chosen;  // index into candidates; none: nothing fits
  std::string why;               // of the chosen, where its class of kernel was chosen by more than tiles; else ""
  // The table's: best first, so chosen is 0 where anything fits, runners-up next, the refused last.
  // The request's own: in the request's order.
  std::vector<CandidateReport> candidates;
};

// "block_q=128,block_kv=128,warps=4,stages=2[,block_v=64][,q_in_registers]" in any order; only block_q and block_kv are
// needed. Absent: warps 4, stages 0 and block_v 0 (see Candidate), q_in_registers off. "threads=N" may stand for
// "warps=W". An error is FLASHDELTA_INVALID_ARGUMENT with one line: the key, what was expected, what came.
Status parse_candidate(std::string_view text, Candidate* candidate);

// FLASHDELTA_INVALID_ARGUMENT for a wrong request (unknown arch, a number out of range); a refused candidate is an
// answer, not an error.
Status make_plan(const PlanRequest& request, PlanReport* report);

// The report for people: fixed-width columns, one candidate a line, the refusals' sentences below. Ends with a newline.
std::string plan_table(const PlanReport& report);

}  // namespace flashdelta
