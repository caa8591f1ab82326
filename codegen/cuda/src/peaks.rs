//! What a GPU can do at most, measured: a copy within its memory, and loops of nothing but the instructions that products
//! are made of. There is no table of cards. Instructions that generated code does not use (`wgmma`) may be faster.

use super::device::{Code, Device, DeviceMemory};
use super::error::CudaError;
use super::launches::{Function, Parameter};
use super::{Cache, Options};
use kernfusion_codegen::Peaks;
use kernfusion_ir::DType;

/// Bytes of a copy, if there is room: more than any cache holds.
const COPIED: usize = 256 << 20;
/// Threads of a block.
const THREADS: usize = 256;
/// Blocks for each multiprocessor.
const BLOCKS: usize = 8;
/// Loops are made longer until one takes this many seconds.
const SECONDS: f64 = 2e-3;
/// The most iterations of a loop.
const TURNS: i32 = 1 << 20;

/// A loop of one instruction.
struct Rate {
    name: &'static str,
    /// Operations of a thread in one iteration.
    operations: f64,
    /// What happens in one iteration, eight times independently, so that none waits for the one before.
    iteration: &'static str,
}

const F32: Rate = Rate {
    name: "peak_f32",
    operations: 64.0,
    iteration: "for (int j = 0; j < 4; j++) d[j] = d[j] * x + y;",
};
// Each of the 32 lanes has its share of 16×8×8 and 16×8×16 multiplications and additions.
const TF32: Rate = Rate { name: "peak_tf32", operations: 512.0, iteration: "mma_tf32(d, a, b);" };
const BF16: Rate = Rate { name: "peak_bf16", operations: 1024.0, iteration: "mma_bf16(d, a, b);" };

/// Measures a GPU in some tens of milliseconds. Products of `f32` are those of the options: ordinary arithmetic, or
/// TF32.
///
/// # Errors
/// NVRTC is missing, the driver reports an error, or there is too little memory for a copy.
pub fn peaks(device: &Device, options: &Options, cache: &Cache) -> Result<Peaks, CudaError> {
    device.enter()?;
    let measure = |rate: &Rate| products(device, rate, cache);
    let (plain, bandwidth) = (measure(&F32)?, bandwidth(device)?);
    let f32_products = if options.tf32 { measure(&TF32)? } else { plain };
    Ok(Peaks {
        bandwidth,
        reads: bandwidth,
        f32_products,
        bf16_products: measure(&BF16)?,
        int8_products: f32_products,
        scalars: plain / 2.0,
    })
}
/// The best of some copies within the device's memory.
fn bandwidth(device: &Device) -> Result<f64, CudaError> {
    let bytes = COPIED.min(device.free_memory()? / 8).max(1 << 20);
    let [from, to] = [device.memory(bytes)?, device.memory(bytes)?];
    // SAFETY: both have that many bytes.
    let copy = || unsafe { device.copy(to.address(0), from.address(0), bytes) };
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        best = best.min(device.seconds(&copy)?);
    }
    Ok(2.0 * bytes as f64 / best)
}

/// Operations a second of an instruction, on all multiprocessors at once.
fn products(device: &Device, rate: &Rate, cache: &Cache) -> Result<f64, CudaError> {
    let code = device.load(&[&function(rate)], &device.architecture()?, cache)?.remove(0);
    let blocks = BLOCKS * device.multiprocessors()?;
    let (results, iterations) = (device.memory(4 * blocks * THREADS)?, device.memory(8)?);
    let mut count = 64i32;
    loop {
        iterations.write(0, &count.to_le_bytes())?;
        let time = best_run(device, &code, blocks, [&results, &iterations])?;
        if time >= SECONDS || count >= TURNS {
            return Ok(rate.operations * f64::from(count) * (blocks * THREADS) as f64 / time);
        }
        count *= 2;
    }
}

fn best_run(
    device: &Device,
    code: &Code,
    blocks: usize,
    memory: [&DeviceMemory; 2],
) -> Result<f64, CudaError> {
    let addresses = memory.map(|memory| memory.address(0));
    // SAFETY: the results have a number for each thread, and two numbers say how long the loop is.
    let run = || unsafe { device.launch(code, [blocks as u32, 1, 1], &addresses) };
    let [first, second] = [device.seconds(&run)?, device.seconds(&run)?];
    Ok(first.min(second))
}

fn function(rate: &Rate) -> Function {
    let text = format!(
        "// So many iterations of eight times one instruction.
#include \"tile.cuh\"

KERNEL __launch_bounds__({THREADS}, 1) {name}(float* results, const int* iterations) {{
  // Numbers that the compiler does not know.
  const float x = (float)iterations[1], y = x + 1.0f;
  const u32 a[4] = {{bits_of_float(x), bits_of_float(y), bits_of_float(x), bits_of_float(y)}};
  const u32 b[2] = {{a[0], a[1]}};
  float sums[8][4] = {{}};
  for (int iteration = 0; iteration < *iterations; iteration++) {{
    UNROLL
    for (int i = 0; i < 8; i++) {{
      float* d = sums[i];
      {iteration}
    }}
  }}
  float sum = 0.0f;
  UNROLL
  for (int i = 0; i < 8; i++) sum += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
  results[blockIdx.x * {THREADS} + threadIdx.x] = sum;
}}
",
        name = rate.name,
        iteration = rate.iteration
    );
    let parameter = |name: &str, dtype, is_written| Parameter { name: name.into(), dtype, is_written };
    let parameters = vec![parameter("results", DType::F32, true), parameter("iterations", DType::I32, false)];
    let name = rate.name.into();
    Function { name, text, parameters, threads: THREADS, shared_bytes: 0, blocks: 1, is_packed: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvrtc::{Form, compile, is_present};

    #[test]
    fn loops_compile_without_spills_and_keep_their_instructions() {
        if !is_present() {
            println!("skipped: NVRTC is not installed");
            return;
        }
        for (rate, instruction) in [(F32, "fma.rn.f32"), (TF32, "m16n8k8"), (BF16, "m16n8k16")] {
            let binary = compile(&function(&rate), "sm_80", Form::Cubin).expect(rate.name);
            assert_eq!(binary.resources().spills, 0, "{}", binary.log);
            let ptx = compile(&function(&rate), "compute_80", Form::Ptx).expect(rate.name).code;
            let ptx = String::from_utf8(ptx).expect("text");
            let found = ptx.matches(instruction).count();
            assert!(found >= if rate.name == "peak_f32" { 32 } else { 8 }, "{ptx}");
        }
    }
}
