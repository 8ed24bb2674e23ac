//! Tests of the conditions about the lists of endorsement keys.

use super::*;

fn list(name: &str, entries: &[(&str, &str)]) -> Arc<KeyList> {
    let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
    let config_map = ObjectKey::new("metal", name);
    Arc::new(KeyList::of(
        &config_map,
        entries.iter().map(owned).collect(),
    ))
}

#[test]
fn malformed_entries_are_counted_and_a_few_are_named() {
    let bad = [("a", "x"), ("b", "x"), ("c", "x"), ("d", "x")];

    let list = list("rack-1", &bad);

    let said = list.malformed.as_ref().unwrap().to_string();
    let expected = "ConfigMap metal/rack-1 has 4 malformed entries: a, b";
    assert_eq!(said, expected);
}

#[test]
fn a_condition_names_every_config_map_with_a_malformed_entry() {
    let digest = "0f".repeat(32);
    let good = list("rack-1", &[(&digest, "metal3://metal/host-7/")]);
    let read = (
        ConditionStatus::True,
        "ListsRead",
        "ConfigMaps that were read: 1".to_owned(),
    );
    assert_eq!(of_read(std::slice::from_ref(&good)), read);

    let bad = ["rack-2", "rack-3"].map(|name| list(name, &[(&digest, "host-7")]));
    let [second, third] = bad.clone();
    let (holds, reason, message) = of_read(&[good, second, third]);

    assert_eq!(
        (holds, reason),
        (ConditionStatus::False, "EntriesMalformed")
    );
    for (list, name) in bad.iter().zip(["metal/rack-2", "metal/rack-3"]) {
        assert!(message.contains(name), "{message}");
        assert!(
            message.contains(&list.malformed.as_ref().unwrap().to_string()),
            "{message}"
        );
    }
}

#[test]
fn the_condition_reports_a_list_without_config_maps() {
    let report = report_without_lists(false);

    assert_eq!(report.of, "EndorsementKeyListsRead");
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::True, "NotApplicable")
    );
}
