//! The complete document.

use super::*;

/// The reason why this text is rejected. The position in the error must begin with `doc`.
fn refuse(text: &[u8], policy: Policy) -> (String, Refused) {
    let refused = Kubeconfig::parse("doc", text, policy).unwrap_err();
    let words = format!("{refused} {refused:?}");
    assert!(!words.contains("0123456789abcdef"), "{words}");
    (refused.place, refused.why)
}

#[test]
fn a_current_context_with_a_missing_entry_is_refused() {
    for (pointer, value, machine, tenant) in [
        (
            "/current-context",
            Value::Null,
            "current-context",
            "current-context",
        ),
        (
            "/current-context",
            json!(""),
            "current-context",
            "current-context",
        ),
        ("/current-context", json!("x"), "context \"x\"", "context"),
        ("/contexts", Value::Null, "context \"here\"", "context"),
        (
            "/contexts/1/context",
            Value::Null,
            "context \"here\"",
            "context",
        ),
        (
            "/contexts/1/context/cluster",
            json!("x"),
            "cluster \"x\"",
            "cluster",
        ),
        (
            "/contexts/1/context/cluster",
            Value::Null,
            "cluster \"\"",
            "cluster",
        ),
        ("/contexts/1/context/user", json!("x"), "user \"x\"", "user"),
        ("/contexts/1/context/user", Value::Null, "user \"\"", "user"),
        ("/clusters", json!([]), "cluster \"c1\"", "cluster"),
        ("/users", json!([]), "user \"u1\"", "user"),
    ] {
        let why = [Some(Refused::Missing); 2];
        check(&with(pointer, value), [machine, tenant], why);
    }
}

#[test]
fn duplicate_names_and_long_tenant_lists_are_refused() {
    for (list, kind, last) in [
        ("clusters", "cluster", "c1"),
        ("contexts", "context", "here"),
        ("users", "user", "u1"),
    ] {
        let of_machine = format!("{kind} {last:?}");
        let places = [of_machine.as_str(), kind];
        let mut twice = valid();
        let entries = twice[list].as_array_mut().unwrap();
        entries.push(entries.last().unwrap().clone());
        check(&twice, places, [Some(Refused::Ambiguous); 2]);

        let mut kubeconfig = valid();
        for (count, why) in [(8, None), (9, Some(Refused::TooMany(8)))] {
            let entries = kubeconfig[list].as_array_mut().unwrap();
            let more = (entries.len()..count).map(|index| json!({"name": index.to_string()}));
            entries.extend(more.collect::<Vec<_>>());
            check(&kubeconfig, places, [None, why]);
        }
    }
}

#[test]
fn a_kubeconfig_over_its_size_limit_is_refused() {
    for (policy, most) in [(Machine, 1_048_576), (Tenant, 65_536)] {
        let mut text = valid().to_string().into_bytes();
        text.resize(most, b' ');
        assert!(
            Kubeconfig::parse("doc", &text, policy).is_ok(),
            "{policy:?}"
        );

        text.push(b' ');
        assert_eq!(
            refuse(&text, policy),
            ("doc".to_owned(), Refused::TooLong(most))
        );
    }
}

#[test]
fn a_wrong_kind_or_version_is_refused_and_a_missing_one_is_accepted() {
    for (pointer, other) in [("/apiVersion", "v2"), ("/kind", "Secret")] {
        check(&with(pointer, Value::Null), [""; 2], [None; 2]);
        let empty = with(pointer, json!("")).to_string();
        assert!(Kubeconfig::parse("doc", empty.as_bytes(), Machine).is_ok());
        let of_tenant = ("doc".to_owned(), Refused::WrongType);
        assert_eq!(refuse(empty.as_bytes(), Tenant), of_tenant, "{pointer}");
        let text = with(pointer, json!(other)).to_string();
        for policy in [Machine, Tenant] {
            let expected = ("doc".to_owned(), Refused::WrongType);
            assert_eq!(refuse(text.as_bytes(), policy), expected, "{pointer}");
        }
    }
}

#[test]
fn an_invalid_kubeconfig_is_refused() {
    let valid = valid();
    for policy in [Machine, Tenant] {
        let not_text = ("doc".to_owned(), Refused::NotUtf8);
        assert_eq!(refuse(&[0xff, 0xfe], policy), not_text);
        for text in [
            "{",
            "clusters: 1",
            "- a",
            &format!("{valid}\n---\n{valid}"),
            r#"{"kind": "Config", "kind": "Config"}"#,
        ] {
            assert_eq!(refuse(text.as_bytes(), policy).1, Refused::Syntax, "{text}");
        }
    }
}

#[test]
fn a_syntax_error_has_the_line_and_for_a_machine_the_field() {
    for (text, field) in [
        (
            format!("users:\n- name: u1\n  user:\n    token: [{TOKEN}]\n"),
            "users[0].user.token",
        ),
        (
            format!("users:\n- name: u1\n  user: {TOKEN}\n"),
            "users[0].user",
        ),
        (format!("- {TOKEN}\n"), "."),
        (format!("users: \"{TOKEN}\n"), "."),
    ] {
        let (of_tenant, why) = refuse(text.as_bytes(), Tenant);
        assert_eq!(why, Refused::Syntax);
        let (line, column) = of_tenant
            .strip_prefix("doc: line ")
            .and_then(|place| place.split_once(", column "))
            .unwrap();
        assert!(
            [line, column]
                .iter()
                .all(|number| number.parse::<u8>().is_ok()),
            "{of_tenant}"
        );

        let of_machine = format!("{of_tenant}: {field}");
        assert_eq!(
            refuse(text.as_bytes(), Machine),
            (of_machine, Refused::Syntax)
        );
    }
}

#[test]
fn anchors_and_deep_or_large_text_from_a_tenant_are_refused() {
    for more in [
        "x: &x [1]".to_owned(),
        "x: &x [1]\ny: [*x, *x]".to_owned(),
        "x: &x {k: 1}\ny: {<<: *x}".to_owned(),
        format!("x: {}1{}", "[".repeat(20), "]".repeat(20)),
        format!("x: [{}]", "1,".repeat(4096)),
    ] {
        assert!(
            Kubeconfig::parse("doc", more.as_bytes(), Machine).is_ok(),
            "{more}"
        );
        assert_eq!(refuse(more.as_bytes(), Tenant).1, Refused::Syntax, "{more}");
    }
    assert_eq!(refuse(b"x: {<<: {k: 1}}", Tenant).1, Refused::Syntax);
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

    assert_eq!(refuse(bomb.as_bytes(), Tenant).1, Refused::Syntax);
}

#[test]
fn no_yaml_spelling_disables_verification() {
    // YAML 1.1 and client-go accept these values.
    for yes in ["true", "True", "yes", "on"] {
        let text = with(&format!("{CLUSTER}/insecure-skip-tls-verify"), json!("YES"));
        let text = text.to_string().replacen("\"YES\"", yes, 1);
        let refused = refuse(text.as_bytes(), Tenant);

        let place = "doc: cluster: insecure-skip-tls-verify".to_owned();
        assert_eq!(refused, (place, Refused::SkipsVerification), "{yes}");
    }
}

#[test]
fn debug_output_contains_no_secret() {
    let user = json!({"token": TOKEN, "client-key-data": "0123456789abcdef"});
    let text = with(USER, user).to_string();
    let kubeconfig = Kubeconfig::parse("doc", text.as_bytes(), Machine).unwrap();
    let login = parse(&valid(), Tenant).unwrap().1;

    for shown in [format!("{kubeconfig:?}"), format!("{login:?}")] {
        assert!(!shown.contains("0123456789abcdef"), "{shown}");
    }
}

#[test]
fn only_a_kubeconfig_of_a_machine_can_end_with_a_marker() {
    let text = valid().to_string();
    for end in [
        "\n---\n",
        "\n---",
        "\n--- \n# end\n",
        "\r\n---\r\n",
        "\n...\n---\n\n",
    ] {
        let text = format!("---\n{text}{end}");
        let parsed = Kubeconfig::parse("doc", text.as_bytes(), Machine).unwrap();
        assert!(parsed.login(read).is_ok(), "{end:?}");
        let (_, why) = refuse(text.as_bytes(), Tenant);
        assert_eq!(why, Refused::Syntax, "{end:?}");
    }
    for end in ["\n---\na: b\n", "\n--- a\n", "\n...\na: b\n"] {
        let text = format!("{text}{end}");
        for policy in [Machine, Tenant] {
            let (_, why) = refuse(text.as_bytes(), policy);
            assert_eq!(why, Refused::Syntax, "{end:?}");
        }
    }
}

#[test]
fn the_first_document_ends_before_the_next_marker() {
    for (first, rest) in [
        ("", ""),
        ("a: b\n", ""),
        ("a: b\n", "---\nc: d\n---\n"),
        ("# c\n\n---\na: b\n", "--- {c: d}\n"),
        ("  # c\n \n---\na: b\n", "---\n"),
        ("%YAML 1.1\n---\na: b\n", "...\n"),
        ("\u{feff}---\r\na: b\r\n", "---\r\n"),
        ("a: |\n  ---\n  ...\n----\n---b\n", ""),
    ] {
        assert_eq!(first_document(&format!("{first}{rest}")), (first, rest));
    }
}
