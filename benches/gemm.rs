//! Matrix products of the `thesis` model beside the `gemm` crate: f32 on one and two threads, bf16 for comparison.

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use kernfusion_benches::random;
use kernfusion_cpu::gemm::{
    Axis, Buffers, Contraction, Element, Operand, Output, Precision, STREAMS, Tiles, Workspaces,
};
use kernfusion_cpu::isa::Isa;
use kernfusion_cpu::pool::Pool;
use std::time::Duration;

/// Name, batch, m, k, n, and whether A and B are contiguous along m and k.
type Shape = (&'static str, usize, usize, usize, usize, bool, bool);

const SHAPES: [Shape; 7] = [
    ("up 16384x384x1536 NN", 1, 16384, 384, 1536, false, false),
    ("up 16384x384x1536 NT", 1, 16384, 384, 1536, false, true),
    ("down 16384x1536x384 NN", 1, 16384, 1536, 384, false, false),
    ("dW up 384x16384x1536 TN", 1, 384, 16384, 1536, true, false),
    ("dW up 384x16384x1536 NT", 1, 384, 16384, 1536, false, true),
    ("scores 384 of 256x64x256 NT", 384, 256, 64, 256, false, true),
    ("decode 1x768x50257 NT", 1, 1, 768, 50257, false, true),
];

fn operand(batch: usize, outer: usize, k: usize, by_outer: bool) -> Operand {
    let strided = |len: usize, stride: usize| Axis::Strided { len, stride: stride as isize };
    let (outer_stride, k_stride) = if by_outer { (1, outer) } else { (k, 1) };
    let axes = (strided(outer, outer_stride), strided(k, k_stride), strided(batch, outer * k));
    Operand { element: Element::F32, outer: axes.0, k: axes.1, batch: axes.2 }
}

/// The same products by the crate `gemm`, one after another.
fn peer(shape: Shape, a: &[f32], b: &[f32], c: &mut [f32], threads: usize) {
    let (_, batch, m, k, n, a_by_m, b_by_k) = shape;
    let strides = |first: bool, lines: usize, length: usize| {
        if first { (1, lines as isize) } else { (length as isize, 1) }
    };
    let ((a_row, a_column), (b_row, b_column)) = (strides(a_by_m, m, k), strides(b_by_k, k, n));
    let parallelism = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    for i in 0..batch {
        let (a, b, c) = (&a[i * m * k..], &b[i * k * n..], &mut c[i * m * n..]);
        // SAFETY: the slices cover their matrices. Strides come as (column, row).
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                false,
                a.as_ptr(),
                a_column,
                a_row,
                b.as_ptr(),
                b_column,
                b_row,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}

fn shape(group: &mut BenchmarkGroup<'_, WallTime>, isa: Isa, shape: Shape) {
    let (_, batch, m, k, n, a_by_m, b_by_k) = shape;
    let (a, b) = (random(batch * m * k, 1), random(batch * k * n, 2));
    let mut c = vec![0.0; batch * m * n];
    for threads in [1, 2] {
        let (pool, workspaces) = (Pool::new(threads), Workspaces::new(threads));
        for precision in [Precision::F32, Precision::Bf16] {
            let contraction = Contraction {
                isa,
                m,
                n,
                k,
                batch,
                a: operand(batch, m, k, a_by_m),
                b: operand(batch, n, k, !b_by_k),
                output: Output::Direct {
                    adds: false,
                    batch: Axis::Strided { len: batch, stride: (m * n) as isize },
                    ldc: n,
                },
                precision,
                tiles: Tiles::Any,
                prologues: [None; 2],
                epilogue: None,
            };
            let buffers = Buffers {
                a: a.as_ptr().cast(),
                b: b.as_ptr().cast(),
                scales: std::ptr::null(),
                c: c.as_mut_ptr(),
                context: std::ptr::null(),
                reads: [None; STREAMS],
                writes: [None; STREAMS],
            };
            let run = || {
                // SAFETY: the operands cover the buffers.
                unsafe { contraction.run(&buffers, &pool, &workspaces) }.expect("enough memory");
            };
            group.bench_function(format!("{precision:?} on {threads}"), |bencher| bencher.iter(run));
        }
        group.bench_function(format!("gemm on {threads}"), |bencher| {
            bencher.iter(|| peer(shape, &a, &b, &mut c, threads));
        });
    }
}

fn products(criterion: &mut Criterion) {
    let isa = Isa::detect().expect("a valid KERNFUSION_ISA");
    for row in SHAPES {
        let mut group = criterion.benchmark_group(row.0);
        // One element is one operation, so that elements per second are FLOP/s.
        let operations = 2 * row.1 * row.2 * row.3 * row.4;
        group.throughput(Throughput::Elements(operations as u64)).sample_size(10);
        group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
        shape(&mut group, isa, row);
        group.finish();
    }
}

criterion_group!(gemm, products);
criterion_main!(gemm);
