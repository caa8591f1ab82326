//! Chains on tensor cores, whose tiles stay in registers from the first product to the second one.
//!
//! Each warp has some rows and all columns of a tile (`chain.cuh`). Its rows of the products' first operands are held in registers. What
//! columns need is in panels, one for each operand, or one for two that are the same numbers, such as the keys in q·kᵀ and in the
//! gradient of q. The first sweep finds all reductions that it can ([`running`](super::running)), second products among them if nothing else is
//! needed for their values.
//!
//! ```text
//! forward                              gradient of q                         of k and v: rows are keys
//! sweep 1: max, sum, O += e · V        sweep 1: max, sum, Σ p·dp             the only sweep: values from scores, max, sum and
//! O / sum                              sweep 2: values, O += values · K        Σ p·dp;  O' += valuesᵀ · Q, O'' += pᵀ · dO
//! ```

use super::body::{Body, operands, sweeps};
use super::chain::Stream;
use super::contraction::define_entries;
use super::running::{Factors, Running};
use super::source::{
    Axes, combiner, constant, coordinates, is_narrow, memory_type, register_type, sum_type, value_name,
};
use super::strip_layout::{Panel, STAGES, Strips};
use super::tiles::element_type;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{Consumer, Contraction, Direction, Form, InstrKind, Kernel, Scalar, Store};
use std::collections::{BTreeMap, BTreeSet};

/// What a sweep over the columns finds.
#[derive(Default)]
struct Sweep {
    /// A maximum whose rising is made up for on the way, and the sum that is taken for 1 until the end.
    running: Running,
    /// Other reductions, with the factors of what they reduce.
    reductions: BTreeMap<Scalar, Factors>,
    /// Whether it stores and multiplies values.
    is_last: bool,
}

impl Stream<'_> {
    pub(super) fn emit_strips(&self, body: &mut Body<'_>, strips: &Strips) {
        let mut chain = StripChain { stream: self, strips, of_rows: BTreeSet::new() };
        chain.declare(body);
        chain.of_rows = chain.row_values(body);
        let in_loop = self.kernel.stores.iter().any(|store| self.is_in_loop(store));
        self.band(body, in_loop);
        let mut reduced = vec![];
        for (number, sweep) in chain.sweeps().iter().enumerate() {
            chain.sweep(body, sweep, number, &reduced);
            reduced.extend(sweep.running.maximum);
            reduced.extend(sweep.reductions.keys());
        }
        (0..self.kernel.consumers().len()).for_each(|number| self.store_consumer(body, number));
        self.stores_of_rows(body, &reduced);
    }
}

/// A chain and how it lies.
struct StripChain<'a> {
    stream: &'a Stream<'a>,
    strips: &'a Strips,
    /// Values that are the same for all columns, and were computed before the first sweep.
    of_rows: BTreeSet<Scalar>,
}

impl StripChain<'_> {
    fn kernel(&self) -> &Kernel {
        self.stream.kernel
    }

    fn stores_in_loop(&self) -> Vec<&Store> {
        self.kernel().stores.iter().filter(|store| self.stream.is_in_loop(store)).collect()
    }

    /// Tiles, held rows and panels.
    fn declare(&self, body: &mut Body<'_>) {
        let Strips { dtype, depths, .. } = self.strips;
        let element = element_type(*dtype);
        body.code.line(format!("using Tile = {};", self.strips.tile(self.strips.columns)));
        body.code.line(format!("LAUNCHED_SHARED({element}, panels, 0, {});", self.strips.memory()));
        let (rows, _) = self.stream.row_and_column_extents();
        for (number, depth) in depths.iter().enumerate() {
            let terms: usize = self.kernel().products()[number].k.iter().product();
            let place = self.strips.place_of_rows(number);
            body.code.line(format!(
                "fill_rows<Tile, {depth}>(panels + {place}, first_row, {rows}, {terms}, a{number});"
            ));
            if self.strips.is_held {
                let panel = self.panel_of_rows(number);
                body.code.line(format!("u32 rows{number}[{}];", self.strips.down * depth / 4));
                body.code.line(format!("Tile::load_rows<{depth}>(rows{number}, {panel});"));
                // The next rows, or the first tile, take their place.
                body.code.line("__syncthreads();");
            }
        }
        for (number, width) in self.strips.widths.iter().enumerate() {
            body.code.line(format!("using Out{number} = {};", self.strips.tile(*width)));
            body.code.line(format!("Out{number} out{number};"));
        }
    }

    /// The panel of a product's rows.
    fn panel_of_rows(&self, number: usize) -> String {
        let (depth, place) = (self.strips.depths[number], self.strips.place_of_rows(number));
        format!("Tile::panel<Tile::ROWS, {depth}>(panels + {place}, a{number})")
    }

    /// Computes what is loaded for a row, and what follows from it alone, once for all columns.
    fn row_values(&self, body: &mut Body<'_>) -> BTreeSet<Scalar> {
        let Kernel { region, domain, .. } = self.kernel();
        let is_of_row = |value: Scalar| {
            let all = region.needed([value], |_| false);
            let has = |is: fn(&InstrKind) -> bool| all.iter().any(|value| is(&region.instr(*value).kind));
            !region.varies(value, domain.column_axes(), domain)
                && has(|kind| matches!(kind, InstrKind::Load { .. }))
                && !has(|kind| matches!(kind, InstrKind::Reduce(..)))
        };
        let all: Vec<_> = (0..region.instrs.len() as u32).map(Scalar).collect();
        let of_row: BTreeSet<_> = all.iter().copied().filter(|value| is_of_row(*value)).collect();
        let others = all.iter().filter(|value| !of_row.contains(value));
        let used: BTreeSet<_> = others.flat_map(|value| region.instr(*value).kind.operands()).collect();
        let found: BTreeSet<_> = of_row.intersection(&used).copied().collect();
        if found.is_empty() {
            return found;
        }
        for value in &found {
            let ty = register_type(region.instr(*value).dtype);
            body.code.line(format!("{ty} row_{}[Tile::SLOTS];", value_name(*value)));
        }
        let (rows, _) = self.stream.row_and_column_extents();
        body.code.line("UNROLL");
        body.block("for (int slot = 0; slot < Tile::SLOTS; slot++)", |body| {
            body.code.line("const int any_row = first_row + Tile::slot_row(slot);");
            body.code.line(format!("const int row = any_row < {rows} ? any_row : {rows} - 1;"));
            let outside = body.axes.names.len();
            body.axes.names.extend(coordinates(&mut body.code, "row", 'r', &domain.axes[domain.row_axes()]));
            body.axes.names.resize(domain.axes.len(), "0".into());
            body.need(found.iter().copied());
            for name in found.iter().map(|value| value_name(*value)) {
                body.code.line(format!("row_{name}[slot] = {name};"));
            }
            body.axes.names.truncate(outside);
        });
        found
    }

    /// The sweeps, of which the first one finds whatever it can.
    fn sweeps(&self) -> Vec<Sweep> {
        let Kernel { region, stores, .. } = self.kernel();
        let values: Vec<_> = self.kernel().consumers().iter().map(|consumer| consumer.value).collect();
        let roots = stores.iter().flat_map(operands).chain(values.iter().copied());
        let live = region.needed(roots, |_| false);
        let levels = sweeps(region, &live);
        let running = Running::of(region, &levels.iter().flatten().copied().collect());
        let found = running.found();
        let reductions = running.reductions.clone();
        let finds_values = values.iter().all(|value| running.factors(*value).is_some());
        let is_last = finds_values && self.stores_in_loop().is_empty();
        let mut result = vec![];
        if !found.is_empty() || is_last {
            result.push(Sweep { running, reductions, is_last });
        }
        for level in levels {
            let rest = level.into_iter().filter(|value| !found.contains(value));
            let reductions: BTreeMap<_, _> = rest.map(|value| (value, Factors::default())).collect();
            if !reductions.is_empty() {
                result.push(Sweep { reductions, ..Sweep::default() });
            }
        }
        let has_last = !values.is_empty() || !self.stores_in_loop().is_empty();
        if has_last && !is_last {
            result.push(Sweep { is_last: true, ..Sweep::default() });
        }
        result
    }

    fn sweep(&self, body: &mut Body<'_>, sweep: &Sweep, number: usize, reduced: &[Scalar]) {
        let region = &self.kernel().region;
        let reductions = sweep.reductions.keys().chain(&sweep.running.maximum);
        for value in reductions.clone() {
            self.declare_reduction(body, *value, "sum");
        }
        if let Some(maximum) = sweep.running.maximum {
            self.declare_reduction(body, maximum, "subtracted");
        }
        let stores = if sweep.is_last { self.stores_in_loop() } else { vec![] };
        let values = if sweep.is_last { self.values() } else { vec![] };
        let roots = reductions.map(|value| reduced_value(self.kernel(), *value));
        let roots =
            roots.chain(stores.iter().flat_map(|store| operands(store))).chain(values.iter().copied());
        let needed = self.stream.needed(roots, reduced);
        let products: BTreeSet<usize> = needed
            .iter()
            .filter_map(|value| match region.instr(*value).kind {
                InstrKind::Producer(number) => Some(number),
                _ => None,
            })
            .collect();
        let vectors = self.strips.vectors.iter().enumerate().filter(|(_, value)| needed.contains(value));
        let vectors: Vec<_> = vectors.map(|(at, value)| (*value, self.strips.vector(at))).collect();
        self.each_tile(body, number, &products, &vectors, sweep.is_last, |body| {
            for (value, offset) in &vectors {
                let name = value_name(*value);
                body.code.line(format!("const float* of_columns_{name} = (const float*)(stage + {offset});"));
            }
            // Products that go on by themselves are started before the threads have something else to do.
            if !self.strips.by_warpgroups {
                body.code.line("fill_next();");
            }
            self.first_products(body, &products);
            if self.strips.by_warpgroups {
                body.code.line("fill_next();");
            }
            for number in 0..values.len() {
                body.code.line(format!("u32 packed{number}[Tile::COUNT / 2];"));
            }
            self.each_part(body, |body| {
                // Groups of products end in their order: those of this part, when as many have been started since.
                body.code.line("Tile::wait<Tile::PARTS - 1>();");
                products.iter().for_each(|number| body.code.line(format!("product{number}.keep(part);")));
                self.inside_and_at_borders(body, |body, is_inside| {
                    self.entries_of_tile(body, sweep, reduced, &stores, &values, is_inside);
                });
                self.second_products(body, &values);
            });
            self.end_products(body, values.len());
        });
        self.finish(body, sweep);
    }

    fn each_part(&self, body: &mut Body<'_>, inside: impl FnOnce(&mut Body<'_>)) {
        body.block_with("for_each_part<Tile>([&](auto part)", ");", inside);
    }

    /// Starts the products of a tile that values are made of, those of each part as a group.
    fn first_products(&self, body: &mut Body<'_>, products: &BTreeSet<usize>) {
        let columns = self.strips.columns;
        products.iter().for_each(|number| body.code.line(format!("Tile product{number};")));
        self.each_part(body, |body| {
            body.code.line("Tile::begin();");
            for &number in products {
                let depth = self.strips.depths[number];
                let offset = self.strips.panels[self.strips.of_product[number]].offset;
                let of_columns = format!("Tile::panel<{columns}, {depth}>(stage + {offset}, b{number})");
                body.code.line(match self.strips.is_held {
                    true => format!("product{number}.multiply<{depth}>(part, rows{number}, {of_columns});"),
                    false => {
                        let of_rows = self.panel_of_rows(number);
                        format!("product{number}.multiply_panels<{depth}>(part, {of_rows}, {of_columns});")
                    }
                });
            }
            body.code.line("Tile::commit();");
        });
    }

    /// The distinct values of second products, as they are before they are rounded to be multiplied.
    fn values(&self) -> Vec<Scalar> {
        let values: BTreeSet<_> = self.kernel().consumers().iter().map(|c| self.unrounded(c)).collect();
        values.into_iter().collect()
    }

    fn unrounded(&self, consumer: &Consumer) -> Scalar {
        let region = &self.kernel().region;
        match region.instr(consumer.value).kind {
            InstrKind::Cast(x) if region.instr(x).dtype == DType::F32 => x,
            _ => consumer.value,
        }
    }

    fn declare_reduction(&self, body: &mut Body<'_>, value: Scalar, prefix: &str) {
        let region = &self.kernel().region;
        let dtype = sum_type(region.instr(value).dtype);
        let InstrKind::Reduce(op, ..) = region.instr(value).kind else { unreachable!("a reduction") };
        let (ty, name) = (register_type(dtype), value_name(value));
        let identity = constant(op.identity(dtype), dtype);
        body.code.line(format!("{ty} {prefix}_{name}[Tile::SLOTS];"));
        self.each_slot(body, &format!("{prefix}_{name}[slot] = {identity};"));
    }

    fn each_slot(&self, body: &mut Body<'_>, line: &str) {
        body.code.line("UNROLL");
        body.code.line(format!("for (int slot = 0; slot < Tile::SLOTS; slot++) {line}"));
    }

    /// A loop over tiles, whose panels are filled while the one before is at work.
    fn each_tile(
        &self,
        body: &mut Body<'_>,
        number: usize,
        products: &BTreeSet<usize>,
        vectors: &[(Scalar, usize)],
        is_last: bool,
        inside: impl FnOnce(&mut Body<'_>),
    ) {
        let Strips { dtype, columns: of_tile, panels, of_product, of_consumer, .. } = self.strips;
        let consumers = if is_last { &of_consumer[..] } else { &[] };
        let needed: BTreeSet<_> =
            products.iter().map(|number| of_product[*number]).chain(consumers.iter().copied()).collect();
        let element = element_type(*dtype);
        body.code.open(format!("const auto fill{number} = [&](int first_column, {element}* stage)"));
        for Panel { operand, size: [rows, depth], range, offset } in needed.iter().map(|at| &panels[*at]) {
            body.code
                .line(format!("fill_deep<Tile, {rows}, {depth}>(stage + {offset}, {range}, {operand});"));
        }
        let domain = &self.kernel().domain;
        let mut names = self.stream.outer.clone();
        names.resize(domain.axes.len() - 1, "0".into());
        names.push("first_column".into());
        let axes = Axes { names, extents: domain.axes.clone() };
        let (_, columns) = self.stream.row_and_column_extents();
        for (value, offset) in vectors {
            let InstrKind::Load { buffer, index, .. } = &self.kernel().region.instr(*value).kind else {
                unreachable!("vectors are loads")
            };
            let name = self.stream.slots[buffer.0 as usize].read();
            body.code.line(format!(
                "fill_vector<Tile::BLOCK, {of_tile}>((float*)(stage + {offset}), {name} + {}, {columns} - first_column);",
                axes.affine(index)
            ));
        }
        body.code.close(";");
        let head = format!(
            "for_each_tile<{STAGES}, {}, Tile>(panels, begin, end, fill{number}, [&](int first_column, {element}* stage, const auto& fill_next)",
            self.strips.stage()
        );
        body.block_with(head, ");", inside);
    }

    /// Code for the entries of a tile, twice: without the checks that all entries pass where the tile lies inside of the domain and of the band.
    fn inside_and_at_borders(&self, body: &mut Body<'_>, inside: impl Fn(&mut Body<'_>, bool)) {
        let (rows, columns) = self.stream.row_and_column_extents();
        let last = format!("first_column + {}", self.strips.columns - 1);
        let mut conditions = vec![];
        if rows % self.strips.rows() != 0 {
            conditions.push(format!("first_row + Tile::ROWS <= {rows}"));
        }
        if columns % self.strips.columns != 0 {
            conditions.push(format!("{last} < {columns}"));
        }
        if let Form::Contraction(Contraction { band: Some(band), .. }) = &self.kernel().form {
            conditions.extend(band.upper.map(|upper| format!("{last} <= first_row + {upper}")));
            conditions.extend(
                band.lower.map(|lower| format!("first_column >= first_row + Tile::ROWS - 1 + {lower}")),
            );
        }
        if conditions.is_empty() {
            return inside(body, true);
        }
        body.block(format!("if ({})", conditions.join(" && ")), |body| inside(body, true));
        body.block("else", |body| inside(body, false));
    }

    /// What becomes of a tile's entries: maxima, other reductions, stores, values that are multiplied again.
    fn entries_of_tile(
        &self,
        body: &mut Body<'_>,
        sweep: &Sweep,
        reduced: &[Scalar],
        stores: &[&Store],
        values: &[Scalar],
        is_inside: bool,
    ) {
        let kernel = self.kernel();
        let mut known: BTreeMap<Scalar, String> =
            reduced.iter().map(|value| (*value, format!("sum_{}[slot]", value_name(*value)))).collect();
        known.extend(self.of_rows.iter().map(|value| (*value, format!("row_{}[slot]", value_name(*value)))));
        let of_columns =
            |value: &Scalar| (*value, format!("of_columns_{}[Tile::column(at)]", value_name(*value)));
        known.extend(self.strips.vectors.iter().map(of_columns));
        if let Some(maximum) = sweep.running.maximum {
            self.raise(body, sweep, maximum, &known, is_inside);
            known.insert(maximum, format!("finite_maximum(subtracted_{}[slot])", value_name(maximum)));
            known.extend(sweep.running.norm.map(|norm| (norm, "1.0f".to_string())));
        }
        let of_reductions = || sweep.reductions.keys().map(|value| (*value, reduced_value(kernel, *value)));
        let roots = of_reductions().map(|(_, x)| x).chain(stores.iter().flat_map(|store| operands(store)));
        let roots: Vec<_> = roots.chain(values.iter().copied()).collect();
        if roots.is_empty() {
            return;
        }
        self.entries(body, &roots, &known, is_inside, values.len(), |body| {
            for (value, x) in of_reductions() {
                let InstrKind::Reduce(op, ..) = kernel.region.instr(value).kind else { unreachable!() };
                let sum = format!("sum_{}[slot]", value_name(value));
                body.code.line(format!("{sum} = {}::combine({sum}, {});", combiner(op), value_name(x)));
            }
            body.stores(stores.iter().copied());
            for (number, value) in values.iter().enumerate() {
                body.code.line(format!("value{number}[at % 2] = {};", value_name(*value)));
            }
        });
    }

    /// Takes the tile's maxima into those so far, and corrects sums.
    fn raise(
        &self,
        body: &mut Body<'_>,
        sweep: &Sweep,
        maximum: Scalar,
        known: &BTreeMap<Scalar, String>,
        is_inside: bool,
    ) {
        let (x, name) = (reduced_value(self.kernel(), maximum), value_name(maximum));
        self.declare_reduction(body, maximum, "of_tile");
        self.entries(body, &[x], known, is_inside, 0, |body| {
            let largest = format!("of_tile_{name}[slot]");
            body.code.line(format!("{largest} = Max::combine({largest}, {});", value_name(x)));
        });
        body.code.line("float factors[Tile::SLOTS];");
        let rate = constant(sweep.running.rate, DType::F32);
        let arguments = format!("part, sum_{name}, subtracted_{name}, of_tile_{name}, {rate}, factors");
        body.block(format!("if (raise_maxima<Tile>({arguments}))"), |body| {
            self.scale(body, sweep, "factors", |of| of.shifted);
        });
    }

    /// Multiplies the sums of a part that were taken of such values.
    fn scale(&self, body: &mut Body<'_>, sweep: &Sweep, by: &str, of: impl Fn(Factors) -> bool) {
        for (value, _) in sweep.reductions.iter().filter(|(_, factors)| of(**factors)) {
            let sum = format!("sum_{}[slot] *= {by}[slot];", value_name(*value));
            body.code.line(format!("for_each_slot<Tile>(part, [&](int slot) {{ {sum} }});"));
        }
        let consumers = if sweep.is_last { self.consumers_with(&sweep.running, of) } else { vec![] };
        for number in consumers {
            body.code.line(format!("scale_rows(part, out{number}, {by});"));
        }
    }

    /// The second products whose values have such factors.
    fn consumers_with(&self, running: &Running, has: impl Fn(Factors) -> bool) -> Vec<usize> {
        let consumers = self.kernel().consumers().iter().enumerate();
        let having = consumers.filter(|(_, consumer)| running.factors(consumer.value).is_some_and(&has));
        having.map(|(number, _)| number).collect()
    }

    /// A loop over this thread's entries of a tile, in which values are computed from those that are known. `inside` sets as many values as are
    /// multiplied again; those of two columns are packed as the fragments of an operand.
    fn entries(
        &self,
        body: &mut Body<'_>,
        roots: &[Scalar],
        known: &BTreeMap<Scalar, String>,
        is_inside: bool,
        values: usize,
        inside: impl FnOnce(&mut Body<'_>),
    ) {
        let each = |body: &mut Body<'_>, head: &str| {
            body.code.line("UNROLL");
            body.block(head, |body| self.entry(body, roots, known, is_inside, inside));
        };
        if values == 0 {
            return each(body, "for (int at = part * Tile::OF_PART; at < (part + 1) * Tile::OF_PART; at++)");
        }
        body.code.line("UNROLL");
        let pairs =
            "for (int pair = part * Tile::OF_PART / 2; pair < (part + 1) * Tile::OF_PART / 2; pair++)";
        body.block(pairs, |body| {
            let declared = (0..values).map(|number| format!("value{number}[2] = {{}}"));
            body.code.line(format!("float {};", declared.collect::<Vec<_>>().join(", ")));
            each(body, "for (int at = 2 * pair; at < 2 * pair + 2; at++)");
            for number in 0..values {
                let [x, y] = [0, 1].map(|at| format!("value{number}[{at}]"));
                body.code.line(format!("packed{number}[pair] = Tile::pack({x}, {y});"));
            }
        });
    }

    /// What happens at an entry.
    fn entry(
        &self,
        body: &mut Body<'_>,
        roots: &[Scalar],
        known: &BTreeMap<Scalar, String>,
        is_inside: bool,
        inside: impl FnOnce(&mut Body<'_>),
    ) {
        let kernel = self.kernel();
        let domain = &kernel.domain;
        let reduced: Vec<_> = known.keys().copied().collect();
        let needed = self.stream.needed(roots.iter().copied(), &reduced);
        body.code
            .line("const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);");
        if !is_inside {
            self.leave_out(body);
        }
        let outside = body.axes.names.len();
        let row = coordinates(&mut body.code, "row", 'r', &domain.axes[domain.row_axes()]);
        let column = coordinates(&mut body.code, "column", 'c', &domain.axes[domain.column_axes()]);
        body.axes.names.extend(row.into_iter().chain(column));
        body.code.line("const int slot = Tile::slot(at);");
        for (value, text) in known.iter().filter(|(value, _)| needed.contains(value)) {
            body.define(*value, text);
        }
        define_entries(body, kernel, Some(&needed));
        if let (true, Form::Contraction(Contraction { inside, .. })) = (is_inside, &kernel.form) {
            let holding = inside.iter().filter(|value| needed.contains(value));
            holding.for_each(|value| body.define(*value, "true"));
        }
        body.need(roots.iter().copied());
        inside(body);
        body.axes.names.truncate(outside);
    }

    /// Leaves out entries beyond the last row or column, where a tile may have such.
    fn leave_out(&self, body: &mut Body<'_>) {
        let (rows, columns) = self.stream.row_and_column_extents();
        let [height, width] = self.strips.tile_size();
        let checks = [("row", rows, height), ("column", columns, width)];
        let checks = checks.iter().filter(|(_, extent, of_tile)| extent % of_tile != 0);
        let checks: Vec<_> = checks.map(|(name, extent, _)| format!("{name} >= {extent}")).collect();
        if !checks.is_empty() {
            body.code.line(format!("if ({}) continue;", checks.join(" || ")));
        }
    }

    /// Multiplies the values of a part with the operands of their consumers, in a group of products, if only an empty one.
    fn second_products(&self, body: &mut Body<'_>, values: &[Scalar]) {
        let columns = self.strips.columns;
        body.code.line("Tile::begin();");
        for (number, value) in values.iter().enumerate() {
            for (at, consumer) in self.kernel().consumers().iter().enumerate() {
                if self.unrounded(consumer) == *value {
                    let (width, panel) =
                        (self.strips.widths[at], &self.strips.panels[self.strips.of_consumer[at]]);
                    body.code.line(format!(
                        "out{at}.multiply<{columns}>(part, packed{number}, Tile::panel<{width}, {columns}>(stage + {}, with{at}));",
                        panel.offset
                    ));
                }
            }
        }
        body.code.line("Tile::commit();");
    }

    /// Waits for second products: panels may be filled again, and values change.
    fn end_products(&self, body: &mut Body<'_>, values: usize) {
        body.code.line("Tile::wait<0>();");
        let outs = if values > 0 { self.strips.widths.len() } else { 0 };
        self.each_part(body, |body| {
            (0..outs).for_each(|number| body.code.line(format!("out{number}.keep(part);")));
        });
        (0..values).for_each(|number| body.code.line(format!("Tile::keep_words(packed{number});")));
    }

    /// Brings reductions together, divides by the norm what was not divided on the way, and takes powers as if the maximum itself had been
    /// subtracted; of what is divided by the norm, it does not matter what was.
    fn finish(&self, body: &mut Body<'_>, sweep: &Sweep) {
        let (region, running) = (&self.kernel().region, &sweep.running);
        for value in sweep.reductions.keys() {
            let InstrKind::Reduce(op, ..) = region.instr(*value).kind else { unreachable!("a reduction") };
            let combine = format!("combine_rows<{}, Tile>(part, sum_{});", combiner(op), value_name(*value));
            self.each_part(body, |body| body.code.line(combine));
        }
        if let Some(norm) = running.norm {
            body.code.line("float inverse[Tile::SLOTS];");
            self.each_slot(body, &format!("inverse[slot] = 1.0f / sum_{}[slot];", value_name(norm)));
            self.each_part(body, |body| self.scale(body, sweep, "inverse", |of| of.divided));
        }
        if let Some(maximum) = running.maximum {
            let (name, rate) = (value_name(maximum), constant(running.rate, DType::F32));
            let correction = format!("correction(sum_{name}[slot], subtracted_{name}[slot], {rate})");
            body.code.line("float corrections[Tile::SLOTS];");
            self.each_slot(body, &format!("corrections[slot] = {correction};"));
            self.each_part(body, |body| {
                self.scale(body, sweep, "corrections", |of| of.shifted && !of.divided);
            });
        }
        for value in sweep.reductions.keys().filter(|value| is_narrow(region.instr(**value).dtype)) {
            let (ty, name) = (memory_type(region.instr(*value).dtype), value_name(*value));
            self.each_slot(body, &format!("sum_{name}[slot] = round_to<{ty}>(sum_{name}[slot]);"));
        }
    }
}

/// What a reduction along the columns reduces.
fn reduced_value(kernel: &Kernel, value: Scalar) -> Scalar {
    match kernel.region.instr(value).kind {
        InstrKind::Reduce(_, Direction::Columns, x) => x,
        _ => unreachable!("chains reduce along columns"),
    }
}
