// Kernels of the simulated driver: a "cubin" is the source that NVRTC was given. When the first of some kernels is
// launched, a C++ compiler builds all that were loaded since with the emulator's header, with SIMULATED_CUBINS also those of a
// folder, in as many processes as there are cores. Functions that differ in names and comments only are one, and one that any process
// has built is not built again: a file, named by the hash of its text, says in which library it is, under which number.
#pragma once
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dirent.h>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

typedef unsigned long long u64;

// The first line of an image; then come a line with the length of the rest, a line with the function's name, the source.
static const char MARKER[] = "simulated cubin\n";

struct Grid {
  unsigned x, y, z;
};

// What a built library has for each function.
struct Entry {
  void (*run)(Grid grid, unsigned threads, unsigned shared, void** arguments);
  unsigned count;
  // Of each argument; all of them are pointers, or structures of pointers.
  const unsigned* bytes;
};

struct Function {
  // The text is the source without its comments, and with numbers for the names of the function and of its buffers.
  std::string name, text;
  const Entry* entry = nullptr;
  // The most bytes of shared memory that a launch may ask for: none before the function does, since its arrays may take all of the 48 KiB that a
  // block has anyway.
  unsigned most_shared = 0;

  Function(std::string name, const std::string& source) : name(name), text(anonymous(name, source)) {
    waiting().insert(this);
  }
  ~Function() { waiting().erase(this); }

  size_t arguments() { return built().count; }
  size_t bytes(size_t argument) { return built().bytes[argument]; }
  void run(Grid grid, unsigned threads, unsigned shared, void** values) { built().run(grid, threads, shared, values); }

  const Entry& built() {
    if (!entry) build_waiting();
    return *entry;
  }

 private:
  static std::set<Function*>& waiting() {
    static auto* waiting = new std::set<Function*>;
    return *waiting;
  }

  static std::string anonymous(const std::string& name, const std::string& source);
  static void build_waiting();
};

// Whether kernels do anything.
inline bool runs_kernels() {
  const char* kernels = getenv("SIMULATED_KERNELS");
  return !kernels || strcmp(kernels, "none");
}

// Names of buffers begin with `g_`, and nothing else does.
inline std::string numbered(const std::string& text) {
  std::map<std::string, size_t> numbers;
  std::string result;
  const auto is_word = [](char c) { return isalnum((unsigned char)c) || c == '_'; };
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_word(text[end])) end++;
    const std::string word = text.substr(at, std::max<size_t>(end - at, 1));
    at += word.size();
    result += word.compare(0, 2, "g_") ? word : "g_" + std::to_string(numbers.emplace(word, numbers.size()).first->second);
  }
  return result;
}

inline std::string Function::anonymous(const std::string& name, const std::string& source) {
  const size_t head = source.rfind("KERNEL __launch_bounds__"), named = source.find(name + "(", head);
  if (head == std::string::npos || named == std::string::npos) return source;
  size_t comments = head;
  for (size_t line; comments > 0; comments = line) {
    line = comments < 2 ? 0 : source.rfind('\n', comments - 2) + 1;
    if (source[line] != '\n' && source.compare(line, 2, "//") != 0) break;
  }
  const std::string own = source.substr(head, named - head) + "kernel" + source.substr(named + name.size());
  return source.substr(0, comments) + numbered(own);
}

// The lines that all sources begin with: the headers.
inline size_t common(const std::vector<std::string>& texts) {
  const std::string& first = texts[0];
  size_t length = first.size();
  for (auto& text : texts) {
    size_t same = 0;
    while (same < length && same < text.size() && text[same] == first[same]) same++;
    length = same;
  }
  // The headers end with a brace in the first column, and a function's own text has none before its name.
  const size_t end = length < 3 ? std::string::npos : first.rfind("\n}\n", length - 3);
  return end == std::string::npos ? 0 : end + 3;
}

inline u64 hash_of(const std::string& text, u64 hash = 0xcbf29ce484222325ull) {
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

inline std::string content(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
}

// The path of a file of this text, which the emulator's header belongs to.
inline std::string path_of(const std::string& text, const char* end) {
  static const u64 emulator = hash_of(content(EMULATOR));
  char name[24];
  snprintf(name, sizeof name, "/%016llx", hash_of(text, emulator));
  return KERNELS + std::string(name) + end;
}

// Writes a file, which appears whole.
inline void write_file(const std::string& path, const std::string& text) {
  const std::string part = path + "." + std::to_string(getpid());
  FILE* file = fopen(part.c_str(), "w");
  if (!file || fwrite(text.data(), text.size(), 1, file) != 1 || fclose(file) != 0 || rename(part.c_str(), path.c_str()) != 0) {
    fprintf(stderr, "simulated driver: %s cannot be written\n", path.c_str());
    exit(4);
  }
}

// Starts the compiler on a text; what it makes appears whole when it ends.
inline pid_t compile(const std::string& text, const std::string& result, const char* options) {
  const std::string part = result + "." + std::to_string(getpid());
  write_file(part + ".cpp", text);
  const pid_t child = fork();
  if (child == 0) {
    const char* compiler = getenv("CXX") ? getenv("CXX") : "g++";
    const std::string command = std::string(compiler) + " -std=c++17 -Og -fwrapv -ffp-contract=off -w -fPIC -fno-gnu-unique " + options + " -o " + part +
                                " " + part + ".cpp && mv " + part + " " + result + " && rm " + part + ".cpp";
    execl("/bin/sh", "sh", "-c", command.c_str(), (char*)nullptr);
    _exit(127);
  }
  return child;
}

// Waits for a compiler.
inline void wait_for(pid_t compiler) {
  int status = 0;
  waitpid(compiler, &status, 0);
  if (status == 0) return;
  fprintf(stderr, "simulated driver: the C++ compiler refuses kernels\n");
  exit(4);
}

// A header of what all sources begin with, compiled once: reading the standard library takes longer than most kernels.
inline const std::string& prelude() {
  static const auto* path = [] {
    const std::string text =
        "typedef unsigned char u8;\ntypedef unsigned short u16;\ntypedef unsigned int u32;\ntypedef unsigned long long u64;\n"
        "typedef long long i64;\n#include \"" EMULATOR "\"\n#include <utility>\n";
    auto* path = new std::string(path_of(text, ".hpp"));
    const std::string compiled = *path + ".gch";
    if (access(compiled.c_str(), R_OK) != 0) {
      write_file(*path, text);
      wait_for(compile(text, compiled, "-x c++-header"));
    }
    return path;
  }();
  return *path;
}

inline std::string source_of(const std::vector<std::string>& texts) {
  std::string text = "#include \"" + prelude() + "\"\n";
  // Alone, a function has all of its source to itself; with others, the headers stand once.
  const size_t shared = texts.size() > 1 ? common(texts) : 0;
  text += texts[0].substr(0, shared);
  text +=
      "\ntemplate <class... A, size_t... I> void simulated_call(void (*f)(A...), void** p, std::index_sequence<I...>) {\n"
      "  f(*(A*)p[I]...);\n}\n"
      "template <class... A> void simulated_launch(void (*f)(A...), dim3 grid, unsigned threads, unsigned shared, void** p) {\n"
      "  emulator::launch(grid, threads, shared, [&] { simulated_call(f, p, std::index_sequence_for<A...>()); });\n}\n"
      "template <class... A> constexpr unsigned simulated_count(void (*)(A...)) { return sizeof...(A); }\n"
      "template <class... A> const unsigned* simulated_bytes(void (*)(A...)) {\n"
      "  static const unsigned bytes[] = {sizeof(A)..., 0};\n  return bytes;\n}\n"
      "struct Entry { void (*run)(dim3, unsigned, unsigned, void**); unsigned count; const unsigned* bytes; };\n";
  for (size_t i = 0; i < texts.size(); i++) {
    const std::string number = std::to_string(i), name = "function" + number + "::kernel";
    text += "namespace function" + number + " {\n" + texts[i].substr(shared) + "\n}\n";
    text += "extern \"C\" const Entry entry" + number + " = {[](dim3 grid, unsigned threads, unsigned shared, void** p) {\n  simulated_launch(" +
            name + ", grid, threads, shared, p);\n}, simulated_count(" + name + "), simulated_bytes(" + name + ")};\n";
  }
  return text;
}

// The function and the source of an image; whether it is one of ours.
inline bool parse_image(const char* image, std::string& name, std::string& source) {
  if (strncmp(image, MARKER, sizeof MARKER - 1)) return false;
  image += sizeof MARKER - 1;
  const size_t length = strtoull(image, nullptr, 10);
  const char *start = strchr(image, '\n') + 1, *text = strchr(start, '\n') + 1;
  name = std::string(start, text - 1);
  source = std::string(text, length);
  return true;
}

// Loads the images of the folder that SIMULATED_CUBINS names, which stay.
inline void load_folder() {
  const char* folder = getenv("SIMULATED_CUBINS");
  DIR* files = folder && *folder ? opendir(folder) : nullptr;
  while (dirent* file = files ? readdir(files) : nullptr) {
    if (file->d_name[0] == '.') continue;
    const std::string image = content(std::string(folder) + "/" + file->d_name);
    std::string name, source;
    if (parse_image(image.c_str(), name, source)) new Function(name, source);
  }
  if (files) closedir(files);
}

// Where a function is: a library, and its number there.
struct Place {
  std::string library;
  size_t number;
};

// Where a function is that was built before.
inline bool find(const std::string& text, Place& place) {
  std::ifstream stream(path_of(text, ".place"));
  return stream >> place.library >> place.number && access(place.library.c_str(), R_OK) == 0;
}

// Says where a function is.
inline void remember(const std::string& text, const Place& place) {
  write_file(path_of(text, ".place"), place.library + " " + std::to_string(place.number) + "\n");
}

// Functions of one source file at most.
constexpr size_t FUNCTIONS_OF_A_FILE = 150;

// Builds functions, in several files.
inline std::map<std::string, Place> build(const std::vector<std::string>& texts) {
  const size_t files = std::min(texts.size(), std::max<size_t>(2, (texts.size() + FUNCTIONS_OF_A_FILE - 1) / FUNCTIONS_OF_A_FILE));
  std::vector<std::vector<std::string>> parts(files);
  for (size_t i = 0; i < texts.size(); i++) parts[i % files].push_back(texts[i]);
  const size_t cores = std::max(sysconf(_SC_NPROCESSORS_ONLN), 1l);
  std::map<std::string, Place> places;
  std::deque<pid_t> running;
  const auto wait_for_first = [&] {
    wait_for(running.front());
    running.pop_front();
  };
  for (auto& part : parts) {
    const std::string source = source_of(part), library = path_of(source, ".so");
    for (size_t i = 0; i < part.size(); i++) places[part[i]] = {library, i};
    if (access(library.c_str(), R_OK) == 0) continue;
    if (running.size() == cores) wait_for_first();
    running.push_back(compile(source, library, "-shared -Wl,-Bsymbolic"));
  }
  while (!running.empty()) wait_for_first();
  for (auto& [text, place] : places) remember(text, place);
  return places;
}

inline const Entry* open(const Place& place) {
  static std::map<std::string, void*> libraries;
  void*& library = libraries[place.library];
  if (!library) library = dlopen(place.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "simulated driver: %s\n", dlerror());
    exit(4);
  }
  return (const Entry*)dlsym(library, ("entry" + std::to_string(place.number)).c_str());
}

inline void Function::build_waiting() {
  static std::map<std::string, const Entry*> known;
  static bool is_first = true;
  if (std::exchange(is_first, false)) load_folder();
  std::set<std::string> missing;
  for (auto* function : waiting()) {
    Place place;
    if (known.count(function->text)) continue;
    if (find(function->text, place)) known[function->text] = open(place);
    else missing.insert(function->text);
  }
  for (auto& [text, place] : build({missing.begin(), missing.end()})) known[text] = open(place);
  for (auto* function : waiting()) function->entry = known[function->text];
  waiting().clear();
}
