//! The viewer's page in a real browser: headless Chromium, driven by real clicks and keys over its WebDriver.
//!
//! Where there is no Chromium (`CHROMIUM`, or one on the path) with its driver, these tests say so and do nothing.

mod browser;

use browser::Browser;
use kernfusion::models::preset;
use kernfusion::optim::Optimizer;
use kernfusion_cli::viewer::{Code, Options, View};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long a page may take to answer on a machine that has other work: it only bounds the wait for what never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The page of a preset's whole training step in a directory of its own, in a browser.
fn opened(name: &str, code: Code) -> Option<(Browser, View, String)> {
    let Some(browser) = Browser::start() else {
        println!("skipped: no Chromium with chromedriver (set CHROMIUM and CHROMEDRIVER)");
        return None;
    };
    let shape = preset(name).unwrap();
    let step = shape.config.train_step(shape.batch, &Optimizer::adamw(3e-4), None).unwrap();
    let options = Options { title: format!("{name} train"), code, ..Options::default() };
    let view = View::new(&step.program.graph, &options).unwrap();
    let address = browser.serve("page.html", &view.page());
    browser.open(&address);
    Some((browser, view, address))
}

impl Browser {
    /// Waits until what is read from the page is as expected, and gives it. A page answers a click when it comes to it:
    /// `toggle` and `hashchange` are events of their own, after the click's.
    #[track_caller]
    fn awaits<T: Debug>(&self, read: impl Fn() -> T, expected: impl Fn(&T) -> bool) -> T {
        let start = Instant::now();
        loop {
            let value = read();
            if expected(&value) {
                return value;
            }
            assert!(start.elapsed() < PATIENCE, "the page still has {value:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until something is chosen whose heading contains a text; the heading.
    #[track_caller]
    fn awaits_chosen(&self, part: &str) -> String {
        self.awaits(|| self.text("#chosen"), |heading| heading.contains(part) && !heading.is_empty())
    }

    /// Waits until the first element of a selector contains a text.
    #[track_caller]
    fn awaits_text(&self, selector: &str, part: &str) {
        self.awaits(|| self.text(selector), |text| text.contains(part));
    }

    /// The text of the first element of a selector; empty where there is none.
    fn text(&self, selector: &str) -> String {
        let text = "return document.querySelector(arguments[0])?.textContent ?? ''";
        self.eval(text, json!([selector])).as_str().unwrap().to_string()
    }

    /// Types into the search and takes the first hit.
    fn search(&self, words: &str) {
        self.click("#search");
        self.eval("document.getElementById('search').value = ''", json!([]));
        self.keys("#search", words);
        self.click("#found li");
    }

    fn assert_no_errors(&self) {
        let errors = self.errors();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

/// From an op to its line, its kernel, its code and its memory, by clicks alone.
#[test]
fn a_journey_by_clicks() {
    let Some((browser, view, address)) = opened("tiny", Code::All) else { return };
    browser.awaits_text("#title", "tiny train");
    browser.search("erf blocks.2.mlp");
    let chosen = browser.awaits_chosen("erf");
    // In the columns, everything that belongs to it is marked.
    browser.awaits_text(".column[data-kind=traced] .row.chosen", "erf");
    browser.awaits_text(".column[data-kind=node] .row.linked", "erf");
    browser.awaits_text(".column[data-kind=kernel] .row.linked", "blocks.2.mlp");
    browser.awaits_text("[data-part='Your line']", "block.forward");
    browser.awaits_text("[data-part=Gradients]", "mul");
    // Its kernel, with the text of its region, and its code.
    browser.click("[data-part=Kernels] a");
    let kernel = browser.awaits_chosen("blocks.2.mlp");
    assert!(view.kernels.iter().any(|row| row.name == kernel), "{kernel}");
    browser.awaits_text("[data-part=Code] pre", " = erf %");
    browser.click("[data-part=Code] details:nth-of-type(2) summary");
    browser.awaits_text("[data-part=Code] details:nth-of-type(2) pre", "ret");
    // A fused op by its row in a column, and back twice by the browser's own history.
    browser.click(".column[data-kind=node] .row.linked");
    browser.awaits_chosen("%");
    browser.back();
    browser.awaits_chosen(&kernel);
    browser.back();
    browser.awaits_chosen(&chosen);
    // A link from outside.
    browser.open(&format!("{address}#kernel=3"));
    browser.awaits_chosen(&view.kernels[3].name);
    browser.assert_no_errors();
}

#[test]
fn modules_views_and_keys() {
    let Some((browser, view, _)) = opened("tiny", Code::Nothing) else { return };
    let rows = |kind: &str| {
        let count = browser.text(&format!(".column[data-kind={kind}] .count"));
        count.replace(',', "").parse::<usize>().unwrap()
    };
    let awaits_rows = |kind: &str, expected: &dyn Fn(usize) -> bool| {
        browser.awaits(|| rows(kind), |&rows| expected(rows));
    };
    awaits_rows("kernel", &|rows| rows == view.kernels.len());
    awaits_rows("node", &|rows| rows == view.simplified.op.len());
    // A module alone, opened to its parts, and everything again.
    browser.click("#tree [data-path='blocks.1'] .op");
    let alone = view.kernels.iter().filter(|kernel| kernel.name.starts_with("blocks.1")).count();
    awaits_rows("kernel", &|rows| rows >= alone && rows < view.kernels.len());
    browser.click("#tree [data-path='blocks.1'] .fold");
    browser.click("#tree [data-path='blocks.1.attn'] .op");
    awaits_rows("kernel", &|rows| rows < alone);
    browser.click("#whole");
    awaits_rows("kernel", &|rows| rows == view.kernels.len());
    // The picture: opening a module shows its parts.
    let boxes =
        || browser.eval("return document.querySelectorAll('.modules g').length", json!([])).as_u64().unwrap();
    browser.keys("body", "2");
    let before = browser.awaits(boxes, |&boxes| boxes > 0);
    browser.click(".modules [data-path='blocks.0']");
    browser.awaits(boxes, |&boxes| boxes > before);
    // Memory: a click in the middle of a buffer's rectangle chooses it.
    browser.click("#tabs [data-tab=memory]");
    let largest = (0..view.buffers.len())
        .filter(|&b| view.buffers[b].offset.is_some() && view.buffers[b].alias.is_none());
    let largest = largest.max_by_key(|&b| {
        let (first, last) = view.buffers[b].life.unwrap();
        view.buffers[b].bytes * (last - first + 1)
    });
    let largest = largest.unwrap();
    let place = browser.eval(
        "const rect = memory.rects.find(({ id }) => id === arguments[0]);
         const [x, y, w, h] = memory.place(rect);
         const { width, height } = memory.canvas.getBoundingClientRect();
         return [x + w / 2 - width / 2, y + h / 2 - height / 2]",
        json!([largest]),
    );
    browser.click_at(".memory canvas", &place);
    browser.awaits_chosen(&view.buffers[largest].name);
    let painted = "const { canvas } = memory; const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const colours = new Set(); for (let at = 0; at < data.length; at += 4096) colours.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
        return colours.size";
    browser.awaits(|| browser.eval(painted, json!([])).as_u64(), |&colours| colours > Some(3));
    // The passes lead to nodes that their rules found.
    browser.click("#tabs [data-tab=passes]");
    browser.click(".pass a");
    browser.awaits_chosen("%");
    browser.awaits_text("#detail", "◆");
    // By keys alone: a search, and nothing chosen any more.
    browser.keys("body", "/");
    browser.keys("#search", "loss\u{e015}\u{e007}");
    browser.awaits_chosen("");
    browser.keys("body", "\u{e00c}");
    browser.awaits(|| browser.eval("return state.kind", json!([])), Value::is_null);
    // Light and dark.
    let ground = || browser.eval("return getComputedStyle(document.body).backgroundColor", json!([]));
    let light = ground();
    browser.click("#theme");
    browser.awaits(ground, |ground| *ground != light);
    browser.assert_no_errors();
}

/// A whole training step of GPT-2 small is a page of which only what is in sight exists as elements.
#[test]
fn gpt2_small_is_drawn_where_it_is_in_sight() {
    let Some((browser, view, _)) = opened("gpt2-small", Code::All) else { return };
    let (nodes, size) = (view.traced.op.len(), view.page().len());
    assert!(nodes > 7000 && size < 4 << 20, "{nodes} nodes, {size} bytes");
    let rows = || browser.eval("return document.querySelectorAll('.row').length", json!([])).as_u64();
    browser.awaits(rows, |rows| rows.is_some_and(|rows| rows > 50));
    assert!(rows().unwrap() < 1000);
    browser.assert_no_errors();
}

#[test]
#[ignore = "a time, for a machine without other work: cargo test --test viewer opens -- --ignored --nocapture"]
fn gpt2_small_opens_in_less_than_three_seconds() {
    let Some((browser, view, address)) = opened("gpt2-small", Code::All) else { return };
    let mut times = Vec::new();
    for _ in 0..3 {
        browser.open("about:blank");
        browser.open(&address);
        let times_of = "const { timing } = performance;
            return [timing.loadEventEnd - timing.navigationStart, Number(document.documentElement.dataset.ready)]";
        times.push(browser.eval(times_of, json!([])));
    }
    let chosen = browser.eval(
        "const start = performance.now(); location.hash = 'kernel=100'; follow();
         const selecting = performance.now() - start; showTab('memory');
         return [selecting, performance.now() - start - selecting]",
        json!([]),
    );
    let (nodes, size) = (view.traced.op.len(), view.page().len());
    println!("{nodes} nodes, {size} bytes: [load, ready] in ms {times:?}; [choosing, memory] in ms {chosen}");
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let load = median(times.iter().map(|both| both[0].as_f64().unwrap()).collect());
    assert!(load > 0.0 && load < 3000.0, "{load} ms");
}
