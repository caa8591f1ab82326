// The emulator's program: does what a file of commands says, and writes what they read to another file. Every word is a
// little-endian u64; `launches` is the table of functions.
#pragma once
#include "seam.cuh"

#include <csignal>
#include <sys/mman.h>
#include <unistd.h>

typedef void (*Launch)(dim3 grid, void** arguments);
extern const Launch launches[];

namespace {

// Memory that ends, but for the rest of its alignment, with a page that nobody may touch. What is before it and the rest are fences.
struct Allocation {
  static constexpr size_t FENCE = 64, ALIGNMENT = 64, PAGE = 4096;
  static constexpr unsigned char PATTERN = 0xa5;
  size_t length, whole;
  unsigned char* pages;

  explicit Allocation(size_t size) : length(size), whole((size + 2 * FENCE + PAGE - 1) / PAGE * PAGE) {
    void* found = mmap(nullptr, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED || mprotect((char*)found + whole, PAGE, PROT_NONE) != 0) {
      fprintf(stderr, "no memory for a buffer of %zu bytes\n", size);
      exit(4);
    }
    pages = (unsigned char*)found;
    memset(start() - FENCE, PATTERN, FENCE);
    memset(start(), 0xff, length);
    memset(start() + length, PATTERN, rest());
  }
  Allocation(Allocation&& other) : length(other.length), whole(other.whole), pages(other.pages) { other.pages = nullptr; }
  ~Allocation() {
    if (pages) munmap(pages, whole + PAGE);
  }

  size_t rest() const { return (ALIGNMENT - length % ALIGNMENT) % ALIGNMENT; }
  unsigned char* start() { return pages + whole - rest() - length; }
  bool is_intact() {
    for (size_t i = 0; i < FENCE; i++)
      if (start()[-1 - (long)i] != PATTERN || (i < rest() && start()[length + i] != PATTERN)) return false;
    return true;
  }
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
  if (!emulator::is_taken(grid)) {
    fprintf(stderr, "a grid of %u,%u,%u blocks, which no card takes\n", grid.x, grid.y, grid.z);
    exit(6);
  }
  launches[function](grid, arguments.data());
}

}  // namespace

// A kernel has touched a page that nobody may touch, or something that is not aligned.
void stop(int signal) {
  static const char outside[] = "a kernel reads or writes outside of a buffer\n", crooked[] = "an access is not aligned\n";
  const bool is_outside = signal != SIGILL;
  const ssize_t written = write(2, is_outside ? outside : crooked, (is_outside ? sizeof outside : sizeof crooked) - 1);
  _exit(written > 0 ? 7 : 4);
}

int main(int, char** names) {
  // Fibers have small stacks.
  static char stack[1 << 16];
  stack_t other = {};
  other.ss_sp = stack;
  other.ss_size = sizeof stack;
  sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_handler = stop;
  action.sa_flags = SA_ONSTACK;
  for (int signal : {SIGSEGV, SIGBUS, SIGILL}) sigaction(signal, &action, nullptr);
  FILE* in = fopen(names[1], "rb");
  FILE* out = fopen(names[2], "wb");
  if (!in || !out) return 4;
  for (;;) switch (word(in)) {
      case END:
        return fclose(out) == 0 ? 0 : 4;
      case SCHEDULE:
        emulator::schedule.eager_copies = word(in);
        emulator::schedule.warp_greedy = word(in);
        emulator::schedule.order = word(in);
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
