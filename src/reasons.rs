//! The reasons of the controller, explained on a node without a network.
//!
//! A test of the controller writes `reasons.bin` from its catalogs, in the same way as docs/reasons.md: `UPDATE=1 cargo
//! test -p node-attestation-manager providers`.

use kubelet_attestation::page_url;

use crate::process::command;
use crate::sheet::Sheet;

/// The page that lists the reasons.
pub(crate) const PAGE: &str = page_url!("reasons.md");

/// The packed catalogue.
///
/// An ASCII byte is a literal character. Every other byte starts a copy of earlier text: its lower seven bits are the
/// length minus [`MIN_COPY`], and the next two bytes are the position of the copied text. The text has one line for
/// each outcome, followed by one line for each reason: name, meaning, remedy and message, with tabs between them.
///
/// The data is packed, because the plain text is three times as long, and each node stores this program.
const PACKED: &[u8] = include_bytes!("reasons.bin");

/// The length of the shortest copy.
const MIN_COPY: usize = 4;

/// A reason of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reason {
    name: String,
    outcome: String,
    meaning: String,
    cure: String,
    message: String,
}

/// Returns the facts about the reason with this name, if the controller of this release uses this reason.
pub(crate) fn explain(name: &str) -> Option<Sheet> {
    let reason = find(name)?;
    let link = format!("{PAGE}#{}", reason.outcome);
    let mut sheet = Sheet::default();
    sheet.text("reason", "Reason", reason.name);
    sheet.text("outcome", "Outcome", reason.outcome);
    sheet.text("meaning", "Meaning", reason.meaning);
    sheet.text("cure", "What to do", reason.cure);
    sheet.text("message", "Message", reason.message);
    sheet.text("link", "See", link);
    Some(sheet)
}

/// The hint for a request that ended with this reason. Other signers have reasons that are not in the catalog.
pub(crate) fn remedy(reason: &str) -> String {
    match find(reason) {
        Some(Reason { name, .. }) => {
            format!(
                "to explain the reason, run: {} explain-reason {name}",
                command()
            )
        }
        None => format!("for the reasons of node-attestation-controller, see {PAGE}"),
    }
}

fn find(name: &str) -> Option<Reason> {
    let text = unpacked();
    let mut outcome = "";
    for line in text.lines() {
        let mut cells = line.split('\t');
        match [cells.next(), cells.next(), cells.next(), cells.next()] {
            [Some(found), Some(meaning), Some(cure), Some(message)] if found == name => {
                return Some(Reason {
                    name: found.to_owned(),
                    outcome: outcome.to_owned(),
                    meaning: meaning.to_owned(),
                    cure: cure.to_owned(),
                    message: message.to_owned(),
                });
            }
            [Some(title), None, ..] => outcome = title,
            _ => {}
        }
    }
    None
}

/// The text of the catalog.
fn unpacked() -> String {
    let mut text = Vec::new();
    let mut packed = PACKED.iter().copied();
    while let Some(byte) = packed.next() {
        if byte.is_ascii() {
            text.push(byte);
            continue;
        }
        let start = [packed.next(), packed.next()].map(Option::unwrap_or_default);
        let start = usize::from(u16::from_be_bytes(start));
        let length = usize::from(byte & 0x7f) + MIN_COPY;
        let copy: Vec<u8> = text.iter().skip(start).take(length).copied().collect();
        text.extend(copy);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reasons that docs/reasons.md lists.
    fn documented() -> Vec<Reason> {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reasons.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut outcome = String::new();
        let mut reasons = Vec::new();
        for line in page.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                outcome = title.to_lowercase();
            }
            let Some(row) = line.strip_prefix("| `") else {
                continue;
            };
            let row = row.strip_suffix(" |").unwrap().replace(r"\<", "<");
            let cells: Vec<_> = row.split(" | ").map(str::to_owned).collect();
            let [name, meaning, cure, message] = cells.try_into().unwrap();
            let name = name.trim_end_matches('`').to_owned();
            reasons.push(Reason {
                name,
                outcome: outcome.clone(),
                meaning,
                cure,
                message,
            });
        }
        reasons
    }

    #[test]
    fn each_documented_reason_is_explained_with_the_text_of_the_page() {
        let documented = documented();
        assert!(documented.len() > 160, "{}", documented.len());

        for reason in documented {
            assert_eq!(find(&reason.name), Some(reason));
        }
    }

    #[test]
    fn an_explanation_links_to_the_section_of_the_outcome() {
        let json = |name| explain(name).unwrap().to_json();

        assert_eq!(json("NameTaken")["link"], format!("{PAGE}#denied"));
        assert_eq!(json("EvidenceExpired")["link"], format!("{PAGE}#failed"));
        assert_eq!(explain("nametaken"), None);
        assert_eq!(explain("denied"), None);
    }

    #[test]
    fn only_a_known_reason_has_a_command_that_explains_it() {
        let known = remedy("NameTaken");
        assert!(known.ends_with(" explain-reason NameTaken"), "{known}");

        let unknown = remedy("NameTaken; reboot");
        assert!(unknown.ends_with(PAGE), "{unknown}");
        assert!(!unknown.contains("reboot"), "{unknown}");
    }
}
