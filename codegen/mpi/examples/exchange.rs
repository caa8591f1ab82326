//! Exchanges some bytes among the processes of `mpirun` and says what each has got.
//!
//! ```text
//! cargo build --example exchange -p kernfusion-mpi
//! mpirun -n 4 target/debug/examples/exchange
//! ```

use kernfusion_codegen::Communicator;
use kernfusion_mpi::{Mpi, Watch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(mpi) = Mpi::launched(Watch::default())? else {
        println!("start me by mpirun");
        return Ok(());
    };
    let (rank, ranks) = (mpi.rank(), mpi.ranks());
    // To rank r goes a part that says who sent it to whom; the last part is shorter, and messages of any length arrive.
    let part = 1 << 20;
    let length = ranks * part - 5;
    let sent: Vec<u8> = (0..length).map(|i| (16 * rank + i / part) as u8).collect();
    let mut received = vec![0; ranks * part];
    mpi.exchange(&sent, part, &mut received, part)?;
    let own = part.min(length - rank * part);
    for from in 0..ranks {
        let right = received[from * part..][..own].iter().all(|&byte| usize::from(byte) == 16 * from + rank);
        assert!(right, "rank {rank} has something else from {from}");
    }
    let mut all = vec![0; length];
    all[rank * part..][..own].fill(rank as u8 + 1);
    mpi.gather(&mut all, part)?;
    assert!(
        all.iter().enumerate().all(|(i, &byte)| usize::from(byte) == i / part + 1),
        "rank {rank} lacks a part"
    );
    println!("rank {rank} of {ranks} by {}", mpi.version());
    mpi.finish()?;
    Ok(())
}
