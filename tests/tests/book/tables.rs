//! The tables on the pages.

use crate::markdown::prose;
use crate::pages;

/// The number of vertical bars in the row. A `\|` belongs to the text of its cell.
fn bars(row: &str) -> usize {
    row.replace("\\|", "").matches('|').count()
}

#[test]
fn every_table_row_has_as_many_cells_as_its_header() {
    let (mut rows, mut uneven) = (0, Vec::new());
    for (path, text) in pages() {
        let mut header = None;
        for line in prose(&text).lines().map(str::trim) {
            if !line.starts_with('|') {
                header = None;
                continue;
            }
            rows += 1;
            let found = bars(line);
            if *header.get_or_insert(found) != found {
                uneven.push(format!("{path}: {line}"));
            }
        }
    }

    // If a row has more cells than the header, GitHub and the book do not show the additional cells.
    assert_eq!(uneven, Vec::<String>::new());
    assert!(rows > 1000, "{rows}");
}
