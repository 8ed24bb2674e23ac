//! The document as a whole.

use super::*;

#[test]
fn the_current_context_names_what_is_there() {
    for (pointer, value, place) in [
        ("/current-context", Value::Null, "current-context"),
        ("/current-context", json!(""), "current-context"),
        ("/current-context", json!("other"), "context"),
        ("/contexts", Value::Null, "context"),
        ("/contexts/0/context", Value::Null, "context"),
        ("/contexts/0/context/cluster", json!("other"), "cluster"),
        ("/contexts/0/context/user", json!("other"), "user"),
        ("/contexts/0/context/user", Value::Null, "user"),
        ("/clusters", json!([]), "cluster"),
        ("/users", json!([]), "user"),
    ] {
        let expected = (format!("value: {place}"), Refused::Missing);
        assert_eq!(refused_at(&with(pointer, value)), expected, "{pointer}");
    }
}

#[test]
fn names_are_given_once_and_lists_are_short() {
    for (pointer, kind) in [
        ("/clusters", "cluster"),
        ("/contexts", "context"),
        ("/users", "user"),
    ] {
        let place = format!("value: {kind}");
        let mut kubeconfig = valid();
        let list = kubeconfig
            .pointer_mut(pointer)
            .unwrap()
            .as_array_mut()
            .unwrap();
        let first = list[0].clone();
        list.push(first);
        assert_eq!(refused_at(&kubeconfig), (place.clone(), Refused::Ambiguous));

        let mut kubeconfig = valid();
        let list = kubeconfig
            .pointer_mut(pointer)
            .unwrap()
            .as_array_mut()
            .unwrap();
        list.extend((0..8).map(|index| json!({"name": index.to_string()})));
        assert_eq!(refused_at(&kubeconfig), (place, Refused::TooMany(8)));
    }
}

#[test]
fn another_document_is_refused() {
    assert_eq!(
        refused(&with("/apiVersion", json!("v2"))),
        Refused::WrongType
    );
    assert_eq!(refused(&with("/kind", json!("Secret"))), Refused::WrongType);
    let parse = |text: &[u8]| invalid(text).why;
    let most = 64 * 1024;
    assert_eq!(parse(&[0xff, 0xfe]), Refused::NotUtf8);
    assert_eq!(parse(&vec![b' '; most + 1]), Refused::TooLong(most));
    let deep = format!("extensions: {}1{}", "[".repeat(64), "]".repeat(64));
    let many = format!("extensions: [{}]", "1,".repeat(4096));
    let valid = valid();
    assert_eq!(parse(b""), Refused::Missing);
    for text in [
        "{",
        "clusters: 1",
        "- a",
        &format!("{valid}\n---\n{valid}"),
        r#"{"kind": "Config", "kind": "Config"}"#,
        "a: &x [1]\nb: [*x, *x]",
        "a: &x {k: 1}\nusers: []",
        "a: {<<: {k: 1}}",
        &deep,
        &many,
    ] {
        assert_eq!(parse(text.as_bytes()), Refused::Syntax, "{text}");
    }
}

#[test]
fn a_yaml_bomb_is_refused() {
    let lines = ('b'..='i').zip('a'..).map(|(name, of)| {
        let aliases = vec![format!("*{of}"); 9].join(", ");
        format!("{name}: &{name} [{aliases}]\n")
    });
    let bomb: String = std::iter::once("a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned())
        .chain(lines)
        .collect();

    assert_eq!(invalid(bomb.as_bytes()).why, Refused::Syntax);
}

#[test]
fn no_secret_is_shown() {
    let kubeconfig = parse(&with(USER, json!({"token": TOKEN}))).unwrap();
    assert!(!format!("{kubeconfig:?}").contains(TOKEN));

    for text in [
        with(USER, json!({"token": [TOKEN]})),
        with(USER, json!(TOKEN)),
        with("/users", json!(TOKEN)),
        with(USER, json!({"token": format!("{TOKEN} {TOKEN}")})),
        with(SERVER, json!(format!("https://{TOKEN}@203.0.113.7"))),
        with(SERVER, json!(format!("https://{TOKEN} x"))),
    ] {
        let refused = parse(&text).unwrap_err();
        assert!(
            !format!("{refused} {refused:?}").contains(TOKEN),
            "{refused}"
        );
    }
}
