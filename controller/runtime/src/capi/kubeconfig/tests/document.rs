//! The document as a whole.

use super::*;

#[test]
fn the_current_context_names_what_is_there() {
    let unknown = |listed| KubeconfigRefused::Unknown { listed };
    for (pointer, value, expected) in [
        (
            "/current-context",
            Value::Null,
            KubeconfigRefused::NoCurrentContext,
        ),
        (
            "/current-context",
            json!(""),
            KubeconfigRefused::NoCurrentContext,
        ),
        ("/current-context", json!("other"), unknown("contexts")),
        ("/contexts", Value::Null, unknown("contexts")),
        ("/contexts/0/context", Value::Null, unknown("contexts")),
        (
            "/contexts/0/context/cluster",
            json!("other"),
            unknown("clusters"),
        ),
        ("/contexts/0/context/user", json!("other"), unknown("users")),
        ("/contexts/0/context/user", Value::Null, unknown("users")),
        ("/clusters", json!([]), unknown("clusters")),
        ("/users", json!([]), unknown("users")),
    ] {
        assert_eq!(refused(&with(pointer, value)), expected, "{pointer}");
    }
}

#[test]
fn names_are_given_once_and_lists_are_short() {
    for (pointer, listed) in [
        ("/clusters", "clusters"),
        ("/contexts", "contexts"),
        ("/users", "users"),
    ] {
        let mut kubeconfig = valid();
        let list = kubeconfig
            .pointer_mut(pointer)
            .unwrap()
            .as_array_mut()
            .unwrap();
        let first = list[0].clone();
        list.push(first);
        assert_eq!(
            refused(&kubeconfig),
            KubeconfigRefused::Duplicate { listed }
        );

        let mut kubeconfig = valid();
        let list = kubeconfig
            .pointer_mut(pointer)
            .unwrap()
            .as_array_mut()
            .unwrap();
        list.extend((0..8).map(|index| json!({"name": index.to_string()})));
        assert_eq!(
            refused(&kubeconfig),
            KubeconfigRefused::TooMany { listed, max: 8 }
        );
    }
}

#[test]
fn another_document_is_refused() {
    assert_eq!(
        refused(&with("/apiVersion", json!("v2"))),
        KubeconfigRefused::WrongType
    );
    assert_eq!(
        refused(&with("/kind", json!("Secret"))),
        KubeconfigRefused::WrongType
    );
    let parse = |text: &[u8]| TenantKubeconfig::parse(text, EgressPolicy::default()).unwrap_err();
    assert_eq!(parse(&[0xff, 0xfe]), KubeconfigRefused::NotUtf8);
    assert_eq!(parse(&vec![b' '; MAX_LEN + 1]), KubeconfigRefused::TooLong);
    let deep = format!("extensions: {}1{}", "[".repeat(64), "]".repeat(64));
    let many = format!("extensions: [{}]", "1,".repeat(4096));
    let valid = valid();
    assert_eq!(parse(b""), KubeconfigRefused::NoCurrentContext);
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
        let refused = parse(text.as_bytes());
        assert!(
            matches!(refused, KubeconfigRefused::Syntax { .. }),
            "{text}: {refused}"
        );
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

    let refused = TenantKubeconfig::parse(bomb.as_bytes(), EgressPolicy::default()).unwrap_err();

    assert!(
        matches!(refused, KubeconfigRefused::Syntax { .. }),
        "{refused}"
    );
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
        let refused = refused(&text);
        assert!(
            !format!("{refused} {refused:?}").contains(TOKEN),
            "{refused}"
        );
    }
}
