// The emulator's program: does what a file of commands says, and writes what they read to another file. Every word is a
// little-endian u64; `launches` is the table of functions.
#pragma once
#include "seam.cuh"

typedef void (*Launch)(dim3 grid, void** arguments);
extern const Launch launches[];

namespace {

// Memory between two fences, which nobody may touch.
struct Allocation {
  static constexpr size_t FENCE = 64;
  static constexpr unsigned char PATTERN = 0xa5;
  std::vector<unsigned char> bytes;

  explicit Allocation(size_t size = 0) : bytes(size + 2 * FENCE + 64, 0xff) {
    memset(start() - FENCE, PATTERN, FENCE);
    memset(start() + size, PATTERN, FENCE);
    length = size;
  }
  unsigned char* start() { return (unsigned char*)(((uintptr_t)bytes.data() + FENCE + 63) / 64 * 64); }
  bool is_intact() {
    for (size_t i = 0; i < FENCE; i++)
      if (start()[-1 - (long)i] != PATTERN || start()[length + i] != PATTERN) return false;
    return true;
  }
  size_t length = 0;
};

std::vector<Allocation> memory;

u64 word(FILE* file) {
  u64 value = 0;
  if (fread(&value, 8, 1, file) != 1) {
    fprintf(stderr, "the commands end early\n");
    exit(4);
  }
  return value;
}

unsigned char* address(FILE* file) {
  const u64 allocation = word(file), offset = word(file);
  return memory[allocation].start() + offset;
}

enum Command { END, SCHEDULE, ALLOCATE, WRITE, CLEAR, LAUNCH, READ, CHECK, COPY };

void launch(FILE* in) {
  const u64 function = word(in);
  const dim3 grid{(unsigned)word(in), (unsigned)word(in), (unsigned)word(in)};
  std::vector<void*> arguments(word(in));
  for (auto& argument : arguments) argument = address(in);
  launches[function](grid, arguments.data());
}

}  // namespace

int main(int, char** names) {
  FILE* in = fopen(names[1], "rb");
  FILE* out = fopen(names[2], "wb");
  if (!in || !out) return 4;
  for (;;) switch (word(in)) {
      case END:
        return fclose(out) == 0 ? 0 : 4;
      case SCHEDULE:
        emulator::schedule.eager_copies = word(in);
        emulator::schedule.warp_greedy = word(in);
        memory.clear();
        break;
      case ALLOCATE:
        memory.emplace_back(word(in));
        break;
      case WRITE: {
        unsigned char* to = address(in);
        const u64 bytes = word(in);
        if (bytes && fread(to, bytes, 1, in) != 1) return 4;
        break;
      }
      case CLEAR: {
        unsigned char* to = address(in);
        memset(to, 0, word(in));
        break;
      }
      case COPY: {
        unsigned char* to = address(in);
        const unsigned char* from = address(in);
        memcpy(to, from, word(in));
        break;
      }
      case LAUNCH:
        launch(in);
        break;
      case READ: {
        unsigned char* from = address(in);
        fwrite(from, word(in), 1, out);
        break;
      }
      case CHECK: {
        const u64 job = word(in);
        for (auto& allocation : memory)
          if (!allocation.is_intact()) {
            fprintf(stderr, "job %llu wrote outside of a buffer\n", job);
            return 5;
          }
        break;
      }
    }
}
