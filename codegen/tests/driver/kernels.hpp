// Kernels of the simulated driver: a "cubin" is the source that NVRTC was given. When the first of some kernels is
// launched, a C++ compiler builds all that were loaded since with the emulator's header, in two processes at a time, and
// keeps the libraries by the hash of their source.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <set>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

typedef unsigned long long u64;

// The first line of an image; then come a line with the length of the rest, a line with the function's name, the source.
static const char MARKER[] = "simulated cubin\n";

struct Grid {
  unsigned x, y, z;
};

// What a built library has for each function.
struct Entry {
  void (*run)(Grid grid, unsigned threads, void** arguments);
  unsigned count;
  // Of each argument; all of them are pointers, or structures of pointers.
  const unsigned* bytes;
};

struct Function {
  std::string name, source;
  const Entry* entry = nullptr;

  Function(std::string name, std::string source) : name(name), source(source) { waiting().insert(this); }
  ~Function() { waiting().erase(this); }

  size_t arguments() { return built().count; }
  size_t bytes(size_t argument) { return built().bytes[argument]; }
  void run(Grid grid, unsigned threads, void** values) { built().run(grid, threads, values); }

  const Entry& built() {
    if (!entry) build_waiting();
    return *entry;
  }

 private:
  static std::set<Function*>& waiting() {
    static auto* waiting = new std::set<Function*>;
    return *waiting;
  }

  static void build_waiting();
};

// The lines that all sources begin with: the headers.
inline size_t common(const std::vector<Function*>& functions) {
  const std::string& first = functions[0]->source;
  size_t length = first.size();
  for (auto* function : functions) {
    size_t same = 0;
    while (same < length && same < function->source.size() && function->source[same] == first[same]) same++;
    length = same;
  }
  // The headers end with a brace in the first column, and a function's own text has none before its name.
  const size_t end = length < 3 ? std::string::npos : first.rfind("\n}\n", length - 3);
  return end == std::string::npos ? 0 : end + 3;
}

inline std::string source_of(const std::vector<Function*>& functions) {
  std::string text =
      "typedef unsigned char u8;\ntypedef unsigned short u16;\ntypedef unsigned int u32;\ntypedef unsigned long long u64;\n"
      "typedef long long i64;\n#include \"" EMULATOR
      "\"\n#include <utility>\n";
  // Alone, a function has all of its source to itself; with others, the headers stand once.
  const size_t shared = functions.size() > 1 ? common(functions) : 0;
  text += functions[0]->source.substr(0, shared);
  text +=
      "\ntemplate <class... A, size_t... I> void simulated_call(void (*f)(A...), void** p, std::index_sequence<I...>) {\n"
      "  f(*(A*)p[I]...);\n}\n"
      "template <class... A> void simulated_launch(void (*f)(A...), dim3 grid, unsigned threads, void** p) {\n"
      "  emulator::launch(grid, threads, [&] { simulated_call(f, p, std::index_sequence_for<A...>()); });\n}\n"
      "template <class... A> constexpr unsigned simulated_count(void (*)(A...)) { return sizeof...(A); }\n"
      "template <class... A> const unsigned* simulated_bytes(void (*)(A...)) {\n"
      "  static const unsigned bytes[] = {sizeof(A)..., 0};\n  return bytes;\n}\n"
      "struct Entry { void (*run)(dim3, unsigned, void**); unsigned count; const unsigned* bytes; };\n";
  for (auto* function : functions) text += function->source.substr(shared) + "\n";
  for (size_t i = 0; i < functions.size(); i++) {
    const std::string number = std::to_string(i), &name = functions[i]->name;
    text += "extern \"C\" const Entry entry" + number + " = {[](dim3 grid, unsigned threads, void** p) {\n  simulated_launch(" +
            name + ", grid, threads, p);\n}, simulated_count(" + name + "), simulated_bytes(" + name + ")};\n";
  }
  return text;
}

inline std::string library_of(const std::string& source) {
  u64 hash = 0xcbf29ce484222325ull;
  for (unsigned char c : source) hash = (hash ^ c) * 0x100000001b3ull;
  char name[40];
  snprintf(name, sizeof name, "/%016llx.so", hash);
  return KERNELS + std::string(name);
}

// Starts the compiler; the library appears whole when it ends.
inline pid_t compile(const std::string& source, const std::string& library) {
  const std::string part = library + "." + std::to_string(getpid());
  FILE* file = fopen((part + ".cpp").c_str(), "w");
  if (!file || fwrite(source.data(), source.size(), 1, file) != 1 || fclose(file) != 0) {
    fprintf(stderr, "simulated driver: %s cannot be written\n", part.c_str());
    exit(4);
  }
  const pid_t child = fork();
  if (child == 0) {
    const char* compiler = getenv("CXX") ? getenv("CXX") : "g++";
    const std::string command = std::string(compiler) +
                                " -std=c++17 -O1 -fwrapv -ffp-contract=off -w -shared -fPIC -fno-gnu-unique -Wl,-Bsymbolic -o " +
                                part + " " + part + ".cpp && mv " + part + " " + library + " && rm " + part + ".cpp";
    execl("/bin/sh", "sh", "-c", command.c_str(), (char*)nullptr);
    _exit(127);
  }
  return child;
}

inline void Function::build_waiting() {
  static std::map<std::string, const Entry*> known;
  // In the order of their sources, so that libraries are found again whatever the order in memory.
  std::map<std::string, std::vector<Function*>> wanted;
  for (auto* function : waiting()) {
    auto found = known.find(function->source);
    if (found == known.end())
      wanted[function->source].push_back(function);
    else
      function->entry = found->second;
  }
  waiting().clear();
  // Several programs may have functions of one name, which need libraries of their own.
  std::vector<std::vector<Function*>> parts(2);
  for (auto& [source, functions] : wanted) {
    auto has_name = [&](auto& part) {
      return std::any_of(part.begin(), part.end(), [&](auto* other) { return other->name == functions[0]->name; });
    };
    std::sort(parts.begin(), parts.end(), [](auto& a, auto& b) { return a.size() < b.size(); });
    auto part = std::find_if_not(parts.begin(), parts.end(), has_name);
    if (part == parts.end()) part = parts.insert(part, std::vector<Function*>());
    part->push_back(functions[0]);
  }
  std::vector<std::string> libraries;
  std::vector<pid_t> running;
  parts.erase(std::remove_if(parts.begin(), parts.end(), [](auto& part) { return part.empty(); }), parts.end());
  for (auto& part : parts) {
    const std::string source = source_of(part), library = library_of(source);
    libraries.push_back(library);
    if (access(library.c_str(), R_OK) != 0) running.push_back(compile(source, library));
  }
  for (pid_t child : running) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
      fprintf(stderr, "simulated driver: the C++ compiler refuses kernels\n");
      exit(4);
    }
  }
  for (size_t i = 0; i < parts.size(); i++) {
    void* library = dlopen(libraries[i].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      fprintf(stderr, "simulated driver: %s\n", dlerror());
      exit(4);
    }
    for (size_t j = 0; j < parts[i].size(); j++)
      known[parts[i][j]->source] = (const Entry*)dlsym(library, ("entry" + std::to_string(j)).c_str());
  }
  for (auto& [source, functions] : wanted)
    for (auto* function : functions) function->entry = known[source];
}
