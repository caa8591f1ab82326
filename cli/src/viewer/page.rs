//! The page around the data.

/// The parts of the script, in order; each may use what stands before it.
const SCRIPT: &[&str] = &[
    include_str!("script/model.js"),
    include_str!("script/journey.js"),
    include_str!("script/list.js"),
    include_str!("script/stages.js"),
    include_str!("script/detail.js"),
    include_str!("script/modules.js"),
    include_str!("script/memory.js"),
    include_str!("script/main.js"),
];

/// The page with this title and data.
pub(super) fn page(title: &str, data: &str) -> String {
    // In a script element nothing but `<` could end it.
    let data = data.replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    let mut page = String::new();
    let parts = [
        ("{{title}}", title),
        ("{{style}}", include_str!("style.css").into()),
        ("{{data}}", data),
        ("{{script}}", SCRIPT.concat()),
    ];
    let mut rest = include_str!("page.html");
    for (mark, part) in parts {
        let (before, after) = rest.split_once(mark).expect("the page has every mark, in this order");
        page.push_str(before);
        page.push_str(&part);
        rest = after;
    }
    page + rest
}
