//! Tests of the memory for sessions in many regions.

use super::*;

#[test]
fn sessions_in_many_regions_share_the_parameters_of_their_calls() {
    let sessions = sessions(&Arc::new(CountingSts::default()));
    let mut objects = objects();
    let account = "AWSServiceAccountIdentity/nodes";
    put(&mut objects, account, &json!({"roleARN": arn("nodes")}));
    put(&mut objects, &of("a"), &role(account, "a"));
    let session = |number| {
        let region = format!("eu-west-{number}");
        sessions.of_plan(&plan(&objects, &of("a")), &region, &key("tenant-a"))
    };

    let all: Vec<_> = (0..100).map(session).collect();

    assert_eq!((sessions.len(), sessions.parameters()), (200, 2));
    drop(all);
    assert_eq!((sessions.len(), sessions.parameters()), (0, 0));
}

#[test]
fn different_roles_do_not_share_the_parameters_of_their_calls() {
    let sessions = sessions(&Arc::new(CountingSts::default()));
    let objects = over_a_jump_role(numbers(3));

    let of = |name: &String| sessions.of_plan(&plan(&objects, &of(name)), REGION, &key(name));
    let all: Vec<_> = numbers(3).iter().map(of).collect();

    assert_eq!(sessions.parameters(), 1 + all.len());
}
