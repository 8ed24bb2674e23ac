//! Tests for C16 to C18: the callers that STS reports.

use super::fixture::*;

const ROLE: &str = "nodes";
const OTHER_ACCOUNT: &str = "210987654321";

fn profile(roles: &[&str]) -> Bed {
    Bed::with(|settings| {
        settings.roles = roles.iter().map(|role| role.parse().unwrap()).collect();
    })
}

fn named(arn: &str, user_id: &str, account: &str) -> Principal {
    Principal {
        arn: arn.into(),
        user_id: user_id.into(),
        account: account.into(),
    }
}

#[tokio::test]
async fn a_caller_that_is_not_an_assumed_role_is_denied() {
    let bed = Bed::start();
    let id = format!("{ACCOUNT}:aws:ec2-instance:{INSTANCE}");
    for arn in [
        "arn".to_owned(),
        String::new(),
        format!("arn:aws:iam::{ACCOUNT}:user/{INSTANCE}"),
        format!("arn:aws:iam::{ACCOUNT}:root"),
        format!("arn:aws:iam::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}"),
        format!("arn:aws:sts::{ACCOUNT}:federated-user/{INSTANCE}"),
        format!("arn:aws:sts::{ACCOUNT}:other/aws:ec2-instance/{INSTANCE}"),
        format!("arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance"),
        format!("arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/"),
        format!("arn:aws:sts::{ACCOUNT}:assumed-role//{INSTANCE}"),
        format!("arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}/"),
        format!("arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/x/{INSTANCE}"),
        format!("arn:aws:sts::{ACCOUNT}:assumed-role/path/to/aws:ec2-instance/{INSTANCE}"),
        format!("arn:aws:sts::{ACCOUNT}:/assumed-role/aws:ec2-instance/{INSTANCE}"),
        format!("arn:aws:sts:eu-west-1:{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}"),
        format!("arn:aws:sts::x:assumed-role/aws:ec2-instance/{INSTANCE}"),
        format!("arn:aws:sts::12345678901x:assumed-role/aws:ec2-instance/{INSTANCE}"),
        format!("arn:aws:sts::1{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}"),
        format!("ARN:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}"),
        format!(" arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}"),
    ] {
        let node = bed.node(named(&arn, &id, ACCOUNT));

        let denied = denial(bed.verify(&node).await);

        assert!(
            matches!(&denied, AwsDenial::CallerNotARole { .. }),
            "{arn}: {denied:?}"
        );
    }
}

#[tokio::test]
async fn an_iam_user_is_refused() {
    let bed = Bed::start();

    let denied = denial(
        bed.verify(&bed.node(Principal::user(ACCOUNT, INSTANCE)))
            .await,
    );

    let arn = format!("arn:aws:iam::{ACCOUNT}:user/{INSTANCE}");
    assert_eq!(denied, AwsDenial::CallerNotARole(arn));
}

#[tokio::test]
async fn a_user_id_that_does_not_match_the_arn_is_denied() {
    let bed = profile(&[ROLE]);
    let instance = format!("arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}");
    let role = format!("arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{INSTANCE}");
    let id = format!("{ACCOUNT}:aws:ec2-instance:{INSTANCE}");
    let role_id = format!("AROAEXAMPLE:{INSTANCE}");
    for (arn, user_id, account) in [
        (
            &instance,
            format!("{ACCOUNT}:aws:ec2-instance:{OTHER_INSTANCE}"),
            ACCOUNT,
        ),
        (
            &instance,
            format!("{OTHER_ACCOUNT}:aws:ec2-instance:{INSTANCE}"),
            ACCOUNT,
        ),
        (&instance, role_id.clone(), ACCOUNT),
        (&instance, INSTANCE.to_owned(), ACCOUNT),
        (&instance, format!("{id}:x"), ACCOUNT),
        (&instance, id.clone(), OTHER_ACCOUNT),
        (&role, id, ACCOUNT),
        (&role, format!("AROAEXAMPLE:{OTHER_INSTANCE}"), ACCOUNT),
        (&role, format!("AIDAEXAMPLE:{INSTANCE}"), ACCOUNT),
        (&role, format!("AROA:{INSTANCE}"), ACCOUNT),
        (&role, format!("AROAexample:{INSTANCE}"), ACCOUNT),
        (&role, format!("AROA:x:{INSTANCE}"), ACCOUNT),
        (&role, "AROAEXAMPLE".to_owned(), ACCOUNT),
        (&role, role_id, OTHER_ACCOUNT),
    ] {
        let node = bed.node(named(arn, &user_id, account));

        let denied = denial(bed.verify(&node).await);

        let expected = AwsDenial::CallerAmbiguous {
            arn: arn.clone(),
            user_id,
        };
        assert_eq!(denied, expected);
    }
}

#[tokio::test]
async fn an_instance_of_another_account_is_refused() {
    let bed = Bed::start();
    let node = bed.node(Principal::instance(OTHER_ACCOUNT, INSTANCE));

    let expected = AwsDenial::CallerOfAnotherAccount {
        caller: OTHER_ACCOUNT.into(),
        account: ACCOUNT.into(),
    };
    assert_eq!(denial(bed.verify(&node).await), expected);
}

#[tokio::test]
async fn an_instance_of_another_partition_is_refused() {
    let bed = Bed::start();
    let node = bed.node(Principal::instance(ACCOUNT, INSTANCE).in_partition("aws-cn"));

    let expected = AwsDenial::CallerOfAnotherPartition {
        caller: "aws-cn".into(),
        partition: "aws".into(),
    };
    assert_eq!(denial(bed.verify(&node).await), expected);
}

#[tokio::test]
async fn an_instance_of_another_partition_is_verified_in_its_region() {
    let bed = Bed::with(|settings| {
        let host = settings.endpoints.remove(REGION).unwrap();
        settings.endpoints.insert("cn-north-1".into(), host);
    });
    let mut node = bed.node(Principal::instance(ACCOUNT, INSTANCE).in_partition("aws-cn"));
    node.region = "cn-north-1".into();
    node.document.region = "cn-north-1".into();

    bed.verify(&node).await.unwrap();
}

#[tokio::test]
async fn a_session_named_after_an_instance_is_denied() {
    for allowed in [&[][..], &["workers"], &["210987654321:nodes"], &["nodes-2"]] {
        let bed = profile(allowed);
        let node = bed.node(Principal::session(ACCOUNT, ROLE, INSTANCE));

        let denied = denial(bed.verify(&node).await);

        assert_eq!(denied, AwsDenial::CallerRoleNotAllowed(ROLE.into()));
    }
}

#[tokio::test]
async fn an_instance_in_an_allowed_profile_role_is_verified() {
    for allowed in ["nodes", "123456789012:nodes"] {
        let bed = profile(&[allowed]);
        let node = bed.node(Principal::instance_profile(ACCOUNT, ROLE, INSTANCE));

        bed.verify(&node).await.unwrap();
    }
}

#[tokio::test]
async fn credentials_and_document_of_different_instances_are_denied() {
    let bed = profile(&[ROLE]);
    for principal in [
        Principal::instance(ACCOUNT, OTHER_INSTANCE),
        Principal::instance_profile(ACCOUNT, ROLE, OTHER_INSTANCE),
        Principal::session(ACCOUNT, ROLE, "me"),
    ] {
        let caller = principal.arn.rsplit('/').next().unwrap().to_owned();

        let denied = denial(bed.verify(&bed.node(principal)).await);

        let expected = AwsDenial::CallerIsAnotherInstance {
            caller,
            instance: INSTANCE.into(),
        };
        assert_eq!(denied, expected);
    }
}

#[tokio::test]
async fn the_caller_name_in_a_denial_is_truncated_and_printable() {
    let bed = Bed::start();
    let arn = format!("arn:\r\n\u{1b}[31m{}", "x".repeat(5000));

    let denied = denial(bed.verify(&bed.node(named(&arn, "", ACCOUNT))).await).to_string();

    assert!(denied.len() < 400, "{}", denied.len());
    assert!(denied.bytes().all(|b| b == b' ' || b.is_ascii_graphic()));
}

#[test]
fn an_allowed_role_can_be_listed_with_or_without_its_account() {
    for role in ["nodes", "123456789012:nodes", "a.b+c=d,e@f-g_h"] {
        let parsed: ProfileRole = role.parse().unwrap();
        assert_eq!(parsed.to_string(), role);
    }
    for role in [
        "",
        "aws:ec2-instance",
        "path/nodes",
        "arn:aws:iam::123456789012:role/nodes",
        "12345:nodes",
        "12345678901x:nodes",
        "123456789012:",
        ":nodes",
        "nodes*",
        "*",
        "no des",
    ] {
        assert_eq!(role.parse::<ProfileRole>(), Err(InvalidRole), "{role}");
    }
    assert!("x".repeat(64).parse::<ProfileRole>().is_ok());
    assert_eq!("x".repeat(65).parse::<ProfileRole>(), Err(InvalidRole));
}
