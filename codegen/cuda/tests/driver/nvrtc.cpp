// A stand-in for NVRTC: takes the source as it is; the simulated driver compiles it when it is launched.
// SIMULATED_REFUSAL: functions whose name contains this are refused, with a log as NVRTC writes it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default"))) int

enum { SUCCESS = 0, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
  std::string name, source, log, image;
};

EXPORT nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 9;
  return SUCCESS;
}

EXPORT nvrtcCreateProgram(Program** program, const char* source, const char* name, int, const char* const*,
                          const char* const*) {
  std::string file = name ? name : "";
  *program = new Program{file.substr(0, file.rfind(".cu")), source, "", ""};
  return SUCCESS;
}

EXPORT nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return SUCCESS;
}

EXPORT nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  bool has_architecture = false;
  for (int i = 0; i < count; i++) has_architecture |= !strncmp(options[i], "--gpu-architecture=sm_", 22);
  if (!has_architecture) {
    program->log = "error: no architecture of a device is given\n";
    return INVALID_OPTION;
  }
  const char* refused = getenv("SIMULATED_REFUSAL");
  if (refused && *refused && program->name.find(refused) != std::string::npos) {
    size_t at = program->source.find("KERNEL __launch_bounds__"), line = 1;
    for (size_t i = 0; i < at && i < program->source.size(); i++) line += program->source[i] == '\n';
    program->log = program->name + ".cu(" + std::to_string(line) + "): error: this simulation was told to refuse it\n\n1 error detected\n";
    return COMPILATION;
  }
  program->image = "simulated cubin\n" + std::to_string(program->source.size()) + "\n" + program->name + "\n" + program->source;
  return SUCCESS;
}

EXPORT nvrtcGetProgramLogSize(Program* program, size_t* size) {
  *size = program->log.size() + 1;
  return SUCCESS;
}

EXPORT nvrtcGetProgramLog(Program* program, char* log) {
  memcpy(log, program->log.c_str(), program->log.size() + 1);
  return SUCCESS;
}

EXPORT nvrtcGetCUBINSize(Program* program, size_t* size) {
  *size = program->image.size();
  return program->image.empty() ? INVALID_PROGRAM : SUCCESS;
}

EXPORT nvrtcGetCUBIN(Program* program, char* code) {
  memcpy(code, program->image.data(), program->image.size());
  return SUCCESS;
}

EXPORT nvrtcGetPTXSize(Program* program, size_t* size) {
  *size = program->image.size() + 1;
  return program->image.empty() ? INVALID_PROGRAM : SUCCESS;
}

EXPORT nvrtcGetPTX(Program* program, char* code) {
  memcpy(code, program->image.c_str(), program->image.size() + 1);
  return SUCCESS;
}

extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int result) {
  return result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "an error of the simulated NVRTC";
}
