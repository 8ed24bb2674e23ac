use serde_json::{Value, json};

use super::*;

/// Passes the text through the filter in pieces of this length, and returns the forwarded text.
fn sieved(text: &str, piece: usize) -> String {
    let mut sieve = Sieve::new(Limits::ANY);
    let mut passed = Vec::new();
    for piece in text.as_bytes().chunks(piece) {
        passed.extend(sieve.pass(Bytes::copy_from_slice(piece)).unwrap());
    }
    assert_eq!(sieve.passed(), passed.len());
    String::from_utf8(passed).unwrap()
}

fn pass(text: &str, limits: Limits, lines: bool) -> Result<(), Excess> {
    let mut sieve = Sieve::new(Limits { lines, ..limits });
    sieve.pass(text.to_owned().into()).map(drop)
}

#[test]
fn managed_fields_are_removed_for_every_chunk_size() {
    let fields = json!([{"time": "9999-12-31T23:59:59Z", "a": [{"b\"]},": "c,\\"}, 1]}, null]);
    let object = |fields: Value| {
        json!({
            "metadata": {"name": "a", "managedFields": fields, "uid": "b"},
            "spec": {"metadata": {"managedFields": fields}, "managedFields": ["kept"]},
        })
    };
    let list = |fields: &Value| json!({"items": [object(fields.clone()), object(fields.clone())]});
    let text = list(&fields).to_string();

    for piece in [1, 2, 3, 7, 64, text.len()] {
        let passed: Value = serde_json::from_str(&sieved(&text, piece)).unwrap();
        assert_eq!(passed, list(&Value::Null), "in pieces of {piece}");
    }
    let pretty = serde_json::to_string_pretty(&list(&fields)).unwrap();
    let passed: Value = serde_json::from_str(&sieved(&pretty, 5)).unwrap();
    assert_eq!(passed, list(&Value::Null));
}

#[test]
fn managed_fields_outside_metadata_are_kept() {
    for text in [
        r#"{"metadata":["managedFields",{"managedFields":1}]}"#,
        r#"{"spec":{"managedFields":{"metadata":1}},"managedFields":2}"#,
        r#"{"metadata":{"managedFieldsOfOurs":1,"annotations":{"managedFields":"x"}}}"#,
        r#"{"metadata":{"annotations":{"a":"\"managedFields\":["}}}"#,
        r#"{"metadata":{"managed\u0046ields":1,"managedFields\\":2,"m\"anagedFields":3}}"#,
        "not JSON at all: \"managedFields",
        "",
    ] {
        for piece in [1, 4, 1000] {
            assert_eq!(sieved(text, piece), text);
        }
    }
}

#[test]
fn removed_values_are_not_counted_toward_the_limits() {
    let text = r#"{"metadata":{"managedFields":[{},{}]},"items":[{},{"a":[1,2]},5]}"#;
    let exactly = Limits {
        values: 10,
        items: 3,
        ..Limits::ANY
    };

    assert_eq!(pass(text, exactly, false), Ok(()));
    let fewer = Limits {
        values: 9,
        ..exactly
    };
    assert_eq!(pass(text, fewer, false), Err(Excess::Values(9)));
    let fewer = Limits {
        items: 2,
        ..exactly
    };
    assert_eq!(pass(text, fewer, false), Err(Excess::Items(2)));
    let three = [text, text, text].join("\n");
    assert_eq!(pass(&three, exactly, true), Ok(()));
    assert_eq!(pass(&three, exactly, false), Err(Excess::Items(3)));
}

#[test]
fn an_oversized_object_is_truncated_without_affecting_others() {
    // The members are in the order in which an API server writes them, with the name first.
    let object = |name: &str, members: &str| {
        format!(r#"{{"metadata":{{"name":"{name}","x":{{{members}}}}},"spec":{{"c":[1]}}}}"#)
    };
    let members: Vec<String> = (0..100)
        .map(|number| format!(r#""{number}":[{{}}]"#))
        .collect();
    let large = object("large", &members.join(","));
    let small = object("small", r#""a":"b""#);
    let list = format!(r#"{{"items":[{small},{large},{small}]}}"#);
    let event = format!(r#"{{"type":"ADDED","object":{large}}}"#) + "\n";
    let small: Value = serde_json::from_str(&small).unwrap();
    let limits = Limits {
        object: 20,
        ..Limits::ANY
    };

    for (text, lines) in [(list, false), (event, true)] {
        for piece in [1, 3, 10, text.len()] {
            let mut sieve = Sieve::new(Limits { lines, ..limits });
            let mut passed = Vec::new();
            for piece in text.as_bytes().chunks(piece) {
                passed.extend(sieve.pass(Bytes::copy_from_slice(piece)).unwrap());
            }
            assert!(sieve.take_cut());
            assert!(!sieve.take_cut());
            let passed: Value = serde_json::from_slice(&passed).unwrap();
            let cut = if lines {
                assert_eq!(passed["type"], "ADDED");
                &passed["object"]
            } else {
                assert_eq!(passed["items"][0], small);
                assert_eq!(passed["items"][2], small);
                &passed["items"][1]
            };
            assert_eq!(cut["metadata"]["name"], "large");
            assert!(cut["metadata"]["x"].as_object().unwrap().len() < 20);
            assert_eq!(cut["spec"], json!({}));
            assert_eq!(cut["$excessRemoved"], true);
        }
    }
}

/// A custom resource with this number of labels. Its fields are sorted, as in an API server's responses.
fn sorted(name: &str, labels: usize) -> String {
    let labels: Vec<String> = (0..labels)
        .map(|number| format!(r#""{number}":"""#))
        .collect();
    let labels = labels.join(",");
    let owners = r#""ownerReferences":[{"uid":"a"}],"uid":"b""#;
    let metadata =
        format!(r#""labels":{{{labels}}},"managedFields":[{{}}],"name":"{name}",{owners}"#);
    format!(r#"{{"metadata":{{{metadata}}},"spec":{{"c":[1]}}}}"#)
}

#[test]
fn a_truncated_object_keeps_a_name_after_its_labels_and_is_marked() {
    let limits = Limits {
        object: 23,
        ..Limits::ANY
    };
    let list = format!(
        r#"{{"metadata":{{}},"items":[{},{},{}]}}"#,
        sorted("large", 21),
        sorted("exact", 10),
        sorted("larger", 100)
    );
    for piece in [1, 2, 7, 64, list.len()] {
        let mut sieve = Sieve::new(limits);
        let mut passed = Vec::new();
        for piece in list.as_bytes().chunks(piece) {
            passed.extend(sieve.pass(Bytes::copy_from_slice(piece)).unwrap());
        }
        assert_eq!(sieve.passed(), passed.len());
        let passed: Value = serde_json::from_slice(&passed).unwrap();
        for (index, name) in [(0, "large"), (2, "larger")] {
            let cut = &passed["items"][index];
            assert_eq!(cut["metadata"]["name"], name);
            assert_eq!(cut["metadata"]["uid"], "b");
            assert_eq!(cut["metadata"]["ownerReferences"], json!([]));
            assert_eq!(cut["spec"], json!({}));
            assert_eq!(cut["$excessRemoved"], true);
        }
        let whole: Value = serde_json::from_str(&sorted("exact", 10)).unwrap();
        let mut exact = passed["items"][1].clone();
        exact["metadata"]["managedFields"] = json!([{}]);
        assert_eq!(exact, whole);
    }
}

#[test]
fn an_object_is_truncated_if_it_has_one_value_too_many() {
    let counted = |object: usize| {
        let limits = Limits {
            object,
            ..Limits::ANY
        };
        let mut sieve = Sieve::new(limits);
        let list = format!(r#"{{"items":[{}]}}"#, sorted("a", 100));
        sieve.pass(list.into()).unwrap();
        sieve.take_cut()
    };
    let exactly = (0..1000).find(|&limit| !counted(limit)).unwrap();

    assert!(counted(exactly - 1));
    // The values of the labels, and a few other values.
    assert!((100..120).contains(&exactly), "{exactly}");
}

#[test]
fn a_watch_event_in_the_middle_of_a_chunk_is_checked() {
    let limits = Limits {
        bytes: 4,
        ..Limits::ANY
    };

    assert_eq!(pass("1234\n1234\n1234", limits, true), Ok(()));
    assert_eq!(pass("1\n12345\n1", limits, true), Err(Excess::Event(4)));
}

#[test]
fn deeply_nested_values_are_accepted() {
    let deep = "[".repeat(5000) + &"]".repeat(5000);
    for text in [
        format!(r#"{{"spec":{deep}}}"#),
        format!(r#"{{"metadata":{{"managedFields":{deep}}}}}"#),
    ] {
        let text = text.as_str();
        assert_eq!(pass(text, Limits::ANY, false), Ok(()));
        assert!(serde_json::from_str::<&serde_json::value::RawValue>(&sieved(text, 100)).is_ok());
    }
}
