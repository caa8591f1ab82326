//! Grids and blocks that a card takes. Functions are written for any number of blocks along x, y and z; cards take 2³¹ − 1 of them along x, but
//! 65,535 along y and z. Where these are too few, all blocks lie along x, and the function's text finds out which it is:
//!
//! ```text
//! grid [2, 70000, 1], blockIdx.y  →  grid [140000, 1, 1], (blockIdx.x / 2 % 70000)
//! ```

/// The most blocks along x, y and z.
pub const MOST_BLOCKS: [usize; 3] = [i32::MAX as usize, 65_535, 65_535];

/// Bytes of shared memory of a block, less those that a launch may ask for: functions that do have arrays of a few numbers beside it.
const OF_ARRAYS: usize = 1 << 10;

/// The most bytes that a launch may ask for on a card that gives a block this many.
pub(super) fn launched_bytes(of_block: usize) -> usize {
    of_block.saturating_sub(OF_ARRAYS)
}

/// The most bytes of shared memory that launches ask for on cards of an architecture, such as `sm_90a` or `compute_80`: by the table of compute
/// capabilities in the CUDA C++ Programming Guide. Cards that are not in it are taken for those with least.
pub(super) fn shared_bytes(architecture: &str) -> usize {
    let digits: String = architecture.chars().filter(char::is_ascii_digit).collect();
    launched_bytes(match digits.as_str() {
        "80" | "87" => 163 << 10,
        "90" | "100" | "101" | "103" | "110" => 227 << 10,
        _ => 99 << 10,
    })
}

/// A grid that a card takes, and the body of a function for it; `None` if the blocks are too many for any.
pub(super) fn arranged(grid: [usize; 3], body: String) -> Option<([u32; 3], String)> {
    let is_taken = |grid: [usize; 3]| grid.iter().zip(MOST_BLOCKS).all(|(&blocks, most)| blocks <= most);
    if is_taken(grid) {
        return Some((grid.map(|blocks| blocks as u32), body));
    }
    let [x, y, z] = grid;
    let all = x.checked_mul(y)?.checked_mul(z)?;
    is_taken([all, 1, 1]).then(|| {
        // That of x first: the others speak of it.
        let body = body.replace("blockIdx.x", &format!("(blockIdx.x % {x})"));
        let body = body.replace("blockIdx.y", &format!("(blockIdx.x / {x} % {y})"));
        ([all as u32, 1, 1], body.replace("blockIdx.z", &format!("(blockIdx.x / {})", x * y)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_shared_memory() {
        let kib = |architecture| shared_bytes(architecture) >> 10;
        assert_eq!(["sm_80", "sm_86", "sm_89", "sm_90a", "compute_90"].map(kib), [162, 98, 98, 226, 226]);
        assert_eq!(["sm_100a", "compute_103f", "sm_120", "sm_121a"].map(kib), [226, 226, 98, 98]);
    }

    #[test]
    fn grids_that_are_taken_stay_as_they_are() {
        let body = "blockIdx.x + blockIdx.y";
        for grid in [[1, 1, 1], MOST_BLOCKS] {
            let same = grid.map(|blocks| blocks as u32);
            assert_eq!(arranged(grid, body.into()), Some((same, body.into())));
        }
    }

    #[test]
    fn others_lie_along_x() {
        let lines = |grid| arranged(grid, "blockIdx.x blockIdx.y blockIdx.z".into());
        let body = "(blockIdx.x % 2) (blockIdx.x / 2 % 65536) (blockIdx.x / 131072)";
        assert_eq!(lines([2, 65_536, 1]), Some(([131_072, 1, 1], body.into())));
        let body = "(blockIdx.x % 1) (blockIdx.x / 1 % 3) (blockIdx.x / 3)";
        assert_eq!(lines([1, 3, 65_536]), Some(([196_608, 1, 1], body.into())));
    }

    #[test]
    fn too_many_are_too_many() {
        assert_eq!(arranged([1 << 31, 1, 1], String::new()), None);
        assert_eq!(arranged([1 << 15, 1 << 16, 1], String::new()), None);
        assert_eq!(arranged([usize::MAX, 70_000, 1], String::new()), None);
    }
}
