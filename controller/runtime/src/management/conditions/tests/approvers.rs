//! Tests of the condition about other approvers of serving certificates.

use super::*;

#[test]
fn another_approver_of_serving_certificates_sets_the_condition_to_false() {
    let of = |change: fn(&mut OtherApprovers)| {
        let mut found = OtherApprovers::default();
        change(&mut found);
        let verdict = serving(Health {
            approvers: Some(Ok(found)),
            ..healthy()
        });
        said(&verdict, "NoOtherServingApprover")
    };
    let approved = |found: &mut OtherApprovers| {
        found.approved.insert("KubectlApprove".to_owned(), 3);
    };

    assert_eq!(of(|_| {}), is("True", "NoneFound"));
    assert_eq!(of(approved), is("False", "ApprovedByOthers"));
    let permitted = of(|found| found.permitted.push("ClusterRoleBinding x".to_owned()));
    assert_eq!(permitted, is("False", "OthersCanApprove"));
    let signed = of(|found| found.signed = 2);
    assert_eq!(signed, is("False", "SignedByOthers"));
    let unread = of(|found| found.unread = Some("not allowed".to_owned()));
    assert_eq!(unread, is("Unknown", "RolesUnreadable"));
    let failed = serving(Health {
        approvers: Some(Err(PartError::Call("no answer".to_owned()))),
        ..healthy()
    });
    let failed = said(&failed, "NoOtherServingApprover");
    assert_eq!(failed, is("Unknown", "Unreachable"));
}
