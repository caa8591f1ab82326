//! Which kernels this back end has code for.

use super::gemv::unpacks;
use kernfusion_codegen::analysis::reduces;
use kernfusion_ir::kernel::{Direction, Kernel};

/// Whether a kernel can be rendered, and if not, why.
///
/// # Errors
/// An operand is more than a load (but half bytes in products of few rows), since tiles of operands are copied from memory as they lie; or
/// rows or columns of a product are reduced, which needs tiles of several blocks of threads.
pub fn accepts(kernel: &Kernel) -> Result<(), &'static str> {
    // A chain keeps its operands in tiles.
    let alone = kernel.products().iter().filter(|_| kernel.consumers().is_empty());
    let unpacked = alone.filter(|product| unpacks(&kernel.domain, product)).count();
    if kernel.operands().filter(|(operand, _)| operand.plain().is_none()).count() > unpacked {
        return Err("on a GPU, a product reads its operands from memory");
    }
    let is_reduced = || [Direction::Rows, Direction::Columns].iter().any(|&d| reduces(&kernel.region, d));
    if !kernel.products().is_empty() && kernel.consumers().is_empty() && is_reduced() {
        return Err("on a GPU, a reduction of a product's rows needs all its tiles");
    }
    Ok(())
}
