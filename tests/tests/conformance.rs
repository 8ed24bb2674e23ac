//! Checks that the tests on the pages about conformance, attacks and tenancy exist, and that the tests for attacks
//! contain the reasons on these pages.

use std::collections::BTreeSet;

use kubelet_authenticator_tests::docs::{
    Source, TestItems, ambiguous, is_reason, long_tests, named, numbered, page, quoted, sources,
    tests,
};

/// The pages whose rows are proven by tests.
const PAGES: [&str; 5] = [
    "conformance.md",
    "conformance-tenancy.md",
    "attacks.md",
    "attacks-runtime.md",
    "tenancy-cases.md",
];

/// The two pages on attacks.
fn attacks() -> String {
    ["attacks.md", "attacks-runtime.md"].map(page).concat()
}

/// The table rows on the page whose first cell consists of a letter and a number. Returns each row with its letter and
/// number.
fn rows(page: &str) -> Vec<((char, usize), &str)> {
    let rows = page.lines().filter_map(|row| {
        let id = row.strip_prefix("| ")?.split(" |").next()?;
        let letter = id.chars().next().filter(char::is_ascii_uppercase)?;
        Some(((letter, id[1..].parse().ok()?), row))
    });
    rows.collect()
}

#[test]
fn every_test_named_on_a_page_exists_once() {
    for name in PAGES {
        let page = page(name);

        assert!(named(&page).len() > 40, "{name} names hardly any test");
        let ambiguous = ambiguous(&page);
        assert!(
            ambiguous.is_empty(),
            "{name}: tests with this name: {ambiguous:#?}"
        );
    }
}

#[test]
fn every_statement_names_a_test_or_a_missing_part() {
    let page = ["conformance.md", "conformance-tenancy.md"]
        .map(page)
        .concat();

    let rows = rows(&page);
    assert!(rows.len() > 100, "{} rows", rows.len());
    let bare: Vec<&str> = rows
        .into_iter()
        .map(|(_, row)| row)
        .filter(|row| named(row).is_empty() && !row.to_lowercase().contains("*not yet"))
        .collect();

    assert_eq!(bare, Vec::<&str>::new());
}

#[test]
fn every_statement_has_a_documented_status_word() {
    let conformance = page("conformance.md");
    let words = ["done", "stricter", "differs", "partial", "not built"];
    for word in words {
        let row = format!("\n| {word} | ");
        assert!(conformance.contains(&row), "{word} is not explained");
    }
    let page = conformance + &page("conformance-tenancy.md");

    let other: Vec<&str> = rows(&page)
        .into_iter()
        .map(|(_, row)| row)
        .filter(|row| {
            let status = row.split(" | ").nth(2);
            status.is_none_or(|status| !words.contains(&status))
        })
        .collect();

    assert_eq!(other, Vec::<&str>::new());
}

#[test]
fn a_row_whose_tests_are_all_long_names_the_make_target() {
    let long = long_tests();
    assert!(long.len() > 10, "{long:?}");
    let mut unmarked = Vec::new();
    for name in PAGES.into_iter().chain(["features.md"]) {
        let page = page(name);
        let rows = page.lines().filter(|line| line.starts_with('|'));
        let of_long = rows.filter(|row| {
            let tests = named(row);
            !tests.is_empty() && tests.iter().all(|test| long.contains(*test))
        });
        let of_long = of_long.filter(|row| !row.contains("`make test-long`"));
        unmarked.extend(of_long.map(|row| format!("{name}: {row}")));
    }

    assert_eq!(unmarked, Vec::<String>::new());
}

#[test]
fn every_row_of_the_test_plan_and_the_disasters_names_a_test() {
    let page = page("conformance.md");
    for heading in ["The test plan", "Disasters"] {
        let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        // Skip the header of the table, and the line below the header.
        let rows = section.lines().filter(|line| line.starts_with('|'));
        let rows: Vec<&str> = rows.skip(2).collect();

        assert!(rows.len() > 10, "{rows:?}");
        let bare: Vec<_> = rows.iter().filter(|row| named(row).is_empty()).collect();
        assert_eq!(bare, Vec::<&&str>::new());
    }
}

/// The first cells of the tables in this section, without the headings.
fn first_cells<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|row| row.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells
        .filter(|cell| *cell != "---" && !cell.starts_with("Disaster"))
        .collect()
}

#[test]
fn every_disaster_on_its_page_is_in_the_table_of_tests() {
    let (disasters, conformance) = (page("disasters.md"), page("conformance.md"));
    let listed = first_cells(&disasters, "Disasters");
    let tested = first_cells(&conformance, "Disasters");

    assert!(listed.len() > 20, "{listed:?}");
    let untested: Vec<_> = listed.iter().filter(|row| !tested.contains(row)).collect();
    assert_eq!(untested, Vec::<&&str>::new());
}

#[test]
fn every_tenancy_case_is_listed_once_in_order_and_names_a_test() {
    let page = page("tenancy-cases.md");
    let rows = numbered(&page, "## Cases and their tests");

    let numbers: Vec<usize> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=79).collect::<Vec<_>>());
    for (number, cells) in rows {
        assert_eq!(cells.len(), 4, "{cells:?}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{cells:?}");
        assert!(!named(cells[3]).is_empty(), "{number} names no test");
    }
}

#[test]
fn every_attack_row_has_a_defense_and_a_test() {
    let page = attacks();
    let rows = rows(&page);

    assert!(rows.len() > 300, "{} rows", rows.len());
    for ((letter, number), row) in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
        assert!(
            !named(cells[5]).is_empty(),
            "{letter}{number} names no test"
        );
    }
}

#[test]
fn attacks_are_numbered_without_gaps_and_duplicates() {
    let page = attacks();
    let rows = rows(&page);

    // The lists A to E are fixed. The other lists can grow.
    for (letter, count) in [('A', 32), ('B', 18), ('C', 19), ('D', 24), ('E', 12)] {
        let of_table = rows.iter().filter(|((table, _), _)| *table == letter);
        assert_eq!(of_table.count(), count, "{letter}");
    }
    for letter in 'A'..='H' {
        let of_table = rows.iter().filter(|((table, _), _)| *table == letter);
        let numbers: Vec<usize> = of_table.map(|((_, number), _)| *number).collect();
        assert!(
            numbers.iter().copied().eq(1..=numbers.len()),
            "{letter}: {numbers:?}"
        );
        assert!(!numbers.is_empty(), "{letter}");
    }
}

#[test]
fn rows_of_table_f_without_a_real_api_server_are_listed() {
    let page = page("attacks.md");
    let sources = sources();
    let real = sources.iter().filter(|source| {
        let path = source.path.to_string_lossy();
        path.starts_with("tests/tests/real_") || path.starts_with("tests/tests/long_")
    });
    let real: Vec<&str> = real.map(|source| source.text.as_str()).collect();
    let is_real = |test: &str| {
        let declared = format!("fn {test}(");
        real.iter().any(|text| text.contains(&declared))
    };
    let mut simulated = Vec::new();
    for ((table, number), row) in rows(&page) {
        let tests = row.trim_matches('|').split(" | ").last().unwrap();
        if table == 'F' && !named(tests).into_iter().any(is_real) {
            simulated.push(format!("F{number}"));
        }
    }

    let sentence = "These rows do not have a test with a real API server: ";
    let (_, listed) = page.split_once(sentence).unwrap();
    let listed = listed.split('.').next().unwrap();
    let listed: Vec<&str> = listed.split(',').map(str::trim).collect();
    assert_eq!(listed, simulated);
}

#[test]
fn every_reason_of_an_attack_is_explained_on_a_reference_page() {
    let pages = [
        "reasons.md",
        "conditions.md",
        "enable-cluster.md",
        "node-identities.md",
        "tenancy-reference.md",
        "verification.md",
    ]
    .map(page);
    let known: BTreeSet<&str> = pages.iter().flat_map(|page| quoted(page)).collect();
    let attacks = attacks();
    let reasons: Vec<&str> = quoted(&attacks).filter(|word| is_reason(word)).collect();
    assert!(reasons.len() > 100, "{reasons:?}");

    let unknown: Vec<_> = reasons
        .into_iter()
        .filter(|reason| !known.contains(reason))
        .collect();

    assert_eq!(unknown, Vec::<&str>::new());
}

#[test]
fn every_reason_of_an_attack_occurs_in_a_test_of_its_row() {
    let sources = sources();
    let attacks = attacks();

    assert_eq!(TestItems::of(&sources).lacking(&attacks), []);
}

#[test]
fn only_a_test_and_its_callees_are_searched_for_a_reason() {
    let source = |package: &str, path: &str, text: &str| Source {
        package: package.into(),
        path: path.into(),
        text: text.to_owned(),
    };
    let attacks = "
#[test]
fn a_direct_one() {
    // Never Commented.
    assert_eq!(denied(), Denial::Direct);
}

#[tokio::test]
async fn an_indirect_one() {
    for (case, reason) in CASES {
        check(case, BELOW);
    }
}

const CASES: [(u8, &str); 1] = [
    (1, \"OfCase\"),
];

const BELOW: Denial =
    Denial::Below;

fn unused() -> Denial {
    Denial::Unused
}
";
    let sources = [
        source("core", "core/src/tests/attacks.rs", attacks),
        source(
            "core",
            "core/src/testing.rs",
            "pub fn check() {\n    Called\n}\n",
        ),
        source(
            "core",
            "core/src/denial.rs",
            "fn denied() {\n    Production\n}\n",
        ),
        source("aws", "aws/src/tests.rs", "fn check() {\n    Foreign\n}\n"),
    ];
    let row =
        |outcome: &str, test: &str| format!("| A1 | who | what | check | {outcome} | {test} |");
    let items = TestItems::of(&sources);

    for (reason, test) in [
        ("`Direct`", "`a_direct_one`"),
        ("`OfCase`, `Below`, `Called`", "`an_indirect_one`"),
        ("`Direct`, `Called`", "`a_direct_one`, `an_indirect_one`"),
    ] {
        assert_eq!(items.lacking(&row(reason, test)), [], "{reason}");
    }
    for (reason, test) in [
        ("Commented", "`a_direct_one`"),
        ("Production", "`a_direct_one`"),
        ("Called", "`a_direct_one`"),
        ("Direct", "`an_indirect_one`"),
        ("Unused", "`an_indirect_one`"),
        ("Foreign", "`an_indirect_one`"),
        ("Direct", "`no_such_test_at_all`"),
    ] {
        let row = row(&format!("Denied: `{reason}`"), test);
        assert_eq!(items.lacking(&row), [("A1", reason)]);
    }
}

#[test]
fn test_names_do_not_contain_row_numbers() {
    let is_row = |name: &&String| {
        let row = name.split('_').next().unwrap().as_bytes();
        matches!(row, [b'a'..=b'h', tens, ones] if tens.is_ascii_digit() && ones.is_ascii_digit())
    };

    assert_eq!(tests().iter().find(is_row), None);
}
