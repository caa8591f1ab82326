//! What ranks exchange, as steps of a program: parts are moved by the communicator of the device, and summed by a function of ours, so that
//! no bit depends on a library's order of sums.
//!
//! ```text
//! all_reduce grad → sum among 4 ranks        exchange grad → scratch        (of each rank, its part that is ours)
//!                                            launch sum_of_parts(scratch, sum + our part)
//!                                            gather sum
//! ```

use super::launches::{Argument, Function, Launch, Launches, Parameter, StreamOp};
use super::lower::{Renderer, comment, unique};
use super::source::{Code, buffer_name, function_name, memory_type, narrowed};
use kernfusion_codegen::{CodegenError, part_of};
use kernfusion_ir::kernel::{BufferId, BufferOffset, CollectiveCall, Kernel, KernelGraph, Transfer};
use kernfusion_ir::{DType, Exchange};

/// Threads of a block.
const THREADS: usize = 256;

/// A function that sums parts: `sum[i] = 0 + parts[0][i] + parts[1][i] + …`, for `bf16` added as `f32` and rounded once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PartSum {
    dtype: DType,
    /// How many parts there are.
    parts: usize,
    /// Elements from one part to the next.
    stride: usize,
    /// Elements that are summed.
    count: usize,
}

impl Renderer {
    /// Appends the steps of an exchange; `spot` says where its buffers lie.
    ///
    /// # Errors
    /// There are not as many ranks as the program has, or a part has more elements than indices of 32 bits reach.
    pub(super) fn collective(
        &mut self,
        program: &mut Launches,
        number: usize,
        graph: &KernelGraph,
        kernel: &Kernel,
        spot: &dyn Fn(BufferId) -> BufferOffset,
    ) -> Result<(), CodegenError> {
        let &CollectiveCall { op, from, to, scratch } = kernel.collective().expect("a kernel that exchanges");
        let unsupported = |what| CodegenError::Unsupported { kernel: kernel.name.clone(), what };
        let (rank, ranks) = self.options().communicator.as_ref().map_or((0, 1), |it| (it.rank(), it.ranks()));
        if ranks != op.ranks {
            return Err(unsupported(format!("an exchange among {} ranks where there are {ranks}", op.ranks)));
        }
        let ty = &graph.buffer(from).ty;
        let (bytes, size) = (ty.bytes(), ty.dtype.size());
        if bytes == 0 {
            return Ok(());
        }
        let (from, to, scratch) = (spot(from), spot(to), scratch.map(spot));
        let behind = |start: BufferOffset, bytes| BufferOffset { offset: start.offset + bytes, ..start };
        let part = op.part(ty) * size;
        let own = part_of(rank, part, bytes);
        let gather = |bytes, part| StreamOp::Gather { kernel: number, at: to, bytes, part };
        if op.exchange == Exchange::AllGather {
            program.steps.push(StreamOp::Copy(Transfer { from, to: behind(to, rank * bytes), bytes }));
            program.steps.extend((ranks > 1).then(|| gather(bytes * ranks, bytes)));
            return Ok(());
        }
        let scratch = scratch.expect("the plan gives sums room for parts");
        let stride = op.scratch_bytes(ty) / ranks;
        program.steps.push(match ranks {
            1 => StreamOp::Copy(Transfer { from, to: scratch, bytes }),
            _ => StreamOp::Exchange { kernel: number, from, bytes, part, to: scratch, stride },
        });
        let sum = PartSum { dtype: ty.dtype, parts: ranks, stride: stride / size, count: own.len() / size };
        if i32::try_from(sum.count).is_err() {
            return Err(unsupported(format!("a sum of {} elements, more than 2^31,", sum.count)));
        }
        let is_whole = op.exchange == Exchange::AllReduce;
        if sum.count > 0 {
            let place = if is_whole { behind(to, own.start) } else { to };
            program.steps.push(StreamOp::Launch(Launch {
                kernels: vec![number],
                function: self.sum_of_parts(sum, &comment(graph, kernel)),
                grid: [sum.count.div_ceil(THREADS) as u32, 1, 1],
                arguments: [scratch, place].map(Argument::Buffer).into(),
                bytes: [own.len() * ranks, own.len()],
            }));
        }
        program.steps.extend((is_whole && ranks > 1).then(|| gather(bytes, part)));
        Ok(())
    }

    /// The function of a sum, which kernels share; the first one is its comment.
    fn sum_of_parts(&mut self, sum: PartSum, comment: &str) -> usize {
        if let Some(&known) = self.sums.get(&sum) {
            return known;
        }
        let PartSum { dtype, parts, stride, count } = sum;
        let name = unique(&mut self.names, &function_name("sum_of_parts"));
        let [from, to] = ["parts", "sum"].map(buffer_name);
        let ty = memory_type(dtype);
        let mut code = Code::default();
        comment.lines().for_each(|line| code.line(format!("// {line}").trim_end()));
        code.line("#include \"tile.cuh\"");
        code.line("");
        code.open(format!(
            "KERNEL __launch_bounds__({THREADS}, 1) {name}(const {ty}* __restrict__ {from}, {ty}* __restrict__ {to})"
        ));
        code.line(format!("const int point = blockIdx.x * {THREADS} + threadIdx.x;"));
        code.line(format!("if (point >= {count}) return;"));
        code.line("float sum = 0.0f;");
        code.line(format!(
            "for (int part = 0; part < {parts}; part++) sum += widen({from}[part * {stride}ll + point]);"
        ));
        code.line(format!("{to}[point] = {};", narrowed("sum", dtype)));
        code.close("");
        let parameter = |name, is_written| Parameter { name, dtype, is_written };
        let parameters = vec![parameter(from, false), parameter(to, true)];
        self.functions.push(Function {
            name,
            text: code.finish(),
            parameters,
            threads: THREADS,
            shared_bytes: 0,
            is_packed: false,
        });
        let function = self.functions.len() - 1;
        self.sums.insert(sum, function);
        function
    }
}
