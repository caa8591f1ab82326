//! Pages that stand alone: HTML with its style inside, for light and dark screens, without scripts.

/// The style of all pages.
const STYLE: &str = include_str!("report.css");

/// A page of sections.
pub(crate) fn page(title: &str, sections: &[String]) -> String {
    let (title, body) = (escaped(title), sections.join("\n"));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )
}

/// A heading and what stands below it.
pub(crate) fn section(heading: &str, content: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n{content}</section>\n", escaped(heading))
}

/// A table; its first column is names, the others are figures.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |kind: &str, cells: &mut dyn Iterator<Item = String>| {
        let cells: String = cells.map(|cell| format!("<{kind}>{cell}</{kind}>")).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = cells("th", &mut head.iter().map(|cell| escaped(cell)));
    let rows: String =
        rows.iter().map(|row| cells("td", &mut row.iter().map(|cell| escaped(cell)))).collect();
    format!("<div class=\"scroll\"><table>\n<thead>{head}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n")
}

/// Names and values, in pairs.
pub(crate) fn pairs(rows: &[(&str, String)]) -> String {
    let rows = rows.iter().filter(|(_, value)| !value.is_empty());
    let rows: String = rows
        .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value)))
        .collect();
    format!("<dl>\n{rows}</dl>\n")
}

/// Large figures beside each other: a value, and what it is.
pub(crate) fn tiles(tiles: &[(String, String)]) -> String {
    let tiles: String = tiles
        .iter()
        .map(|(value, name)| {
            format!("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escaped(value), escaped(name))
        })
        .collect();
    format!("<div class=\"tiles\">\n{tiles}</div>\n")
}

/// A text as it is, in HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
