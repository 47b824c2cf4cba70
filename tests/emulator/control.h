// Functions of one thread that the device and the host both run.
#pragma once

#ifdef __CUDACC__
#define CONTROL_FUNCTION __device__ inline
#else
#define CONTROL_FUNCTION inline
#endif

#define FOR_EACH_CONTROL_KERNEL(x) \
  x(nested_branches) x(lane_loops) x(switches) x(breaks) x(local_array) x(short_circuit)

CONTROL_FUNCTION int control_nested_branches(int i, int*) {
  int x = i * 7;
  if (i % 2 == 0) {
    if (i % 3 == 0) {
      x += 100;
    } else if (i % 5 == 0) {
      x -= 50;
      if (i > 20) x *= 3;
    }
    x ^= 0x55;
  } else {
    for (int k = 0; k < 3; ++k) x = x % 2 == 0 ? x / 2 + k : 3 * x + 1;
  }
  return x;
}

CONTROL_FUNCTION int control_lane_loops(int i, int*) {
  unsigned x = static_cast<unsigned>(i) + 1;
  int steps = 0;
  while (x != 1 && steps < 200) {
    x = x % 2 == 0 ? x / 2 : 3 * x + 1;
    for (unsigned k = 0; k < x % 3; ++k) steps += k == 1 ? 2 : 1;
    ++steps;
  }
  return steps;
}

CONTROL_FUNCTION int control_switches(int i, int* data) {
  int x = i;
  for (int round = 0; round < 3; ++round) {
    switch ((i + round) % 9) {
      case 0: x += 11; break;
      case 1: x *= 3; break;
      case 2: x -= 7;  // falls through
      case 3: x ^= 0x21; break;
      case 4: x = x * x % 1000; break;
      case 5: return x - 10000;
      case 6: x = -x; break;
      case 7: x = data == nullptr ? 0 : x << 2; break;
      default: x /= 2;
    }
  }
  return x;
}

CONTROL_FUNCTION int control_breaks(int i, int*) {
  int x = 0;
  for (int a = 0; a < 10; ++a) {
    if ((a + i) % 4 == 3) continue;
    for (int b = 0; b < 10; ++b) {
      x += a * b + i % 3;
      if (x > 20 * (i % 7 + 1)) break;
    }
    if (a == i % 11) break;
    x -= 3;
  }
  return x;
}

// An array indexed at run time lives in local memory.
CONTROL_FUNCTION int control_local_array(int i, int*) {
  int table[16];
  for (int k = 0; k < 16; ++k) table[k] = (k * k + i) % 13;
  int at = i % 16;
  for (int k = 0; k < 8; ++k) {
    table[at] += k;
    at = (at + table[at]) % 16;
  }
  return table[at] * 100 + at;
}

CONTROL_FUNCTION int control_short_circuit(int i, int*) {
  const bool a = i % 3 == 0, b = i > 17, c = i % 7 != 2;
  int x = 0;
  if ((a && b) || (c && !a)) x |= 1;
  if ((a || b) && (b || c)) x |= 2;
  if (a ? b : c) x |= 4;
  return x * (b ? i : -i);
}
