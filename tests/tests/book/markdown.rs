//! Pages as Markdown text.

use std::collections::BTreeSet;

/// The text without its code blocks.
pub fn prose(page: &str) -> String {
    let mut in_code = false;
    let lines = page.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The page's code blocks in this language.
pub fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let blocks = page.split(fence.as_str()).skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

/// The code between backticks in prose.
pub fn inline_code(page: &str) -> Vec<String> {
    let prose = prose(page);
    let code = prose.split('`').skip(1).step_by(2);
    code.map(|text| text.replace("\\|", "|").replace('\n', " "))
        .collect()
}

/// The anchors of the page, in the format of GitHub and mdBook.
pub fn anchors(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let explicit = prose.split("<a id=\"").skip(1);
    let explicit = explicit.map(|rest| rest.split('"').next().unwrap().to_owned());
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let headings = headings.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            _ => letter.is_alphanumeric().then_some(letter),
        });
        kept.collect::<String>()
    });
    explicit.chain(headings).collect()
}

/// The targets of the links on the page. Code, such as a regular expression, does not contain links.
pub fn links(page: &str) -> Vec<String> {
    let prose: String = prose(page).split('`').step_by(2).collect();
    let links = prose.split("](").skip(1);
    links
        .map(|rest| rest.split(')').next().unwrap().to_owned())
        .collect()
}
