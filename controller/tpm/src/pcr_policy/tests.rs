use node_attestation_core::crd::PcrSet;

use super::*;

fn value(byte: u8) -> String {
    HEXLOWER.encode(&[byte; 32])
}

fn state(registers: &[(u8, u8)]) -> PcrSet {
    let registers = registers.iter();
    registers
        .map(|(number, byte)| (number.to_string(), value(*byte)))
        .collect()
}

fn settings(allowed: Vec<PcrSet>) -> crd::PcrPolicy {
    crd::PcrPolicy { allowed }
}

fn enforced(allowed: &[&[(u8, u8)]]) -> PcrPolicy {
    let allowed = allowed.iter().map(|registers| state(registers));
    PcrPolicy::new(&settings(allowed.collect())).unwrap()
}

fn registers(registers: &[(u8, u8)]) -> Registers {
    let registers = registers.iter();
    Registers::new(
        registers
            .map(|(number, byte)| (*number, [*byte; 32]))
            .collect(),
    )
    .unwrap()
}

fn invalid_state(rule: &str) -> InvalidTpmSettings {
    InvalidTpmSettings::new(format!("pcrPolicy.allowed[1] {rule}"))
}

#[test]
fn one_of_several_states_is_enough_and_more_may_be_quoted() {
    let policy = enforced(&[&[(4, 1), (7, 1)], &[(4, 2), (7, 2)]]);

    for good in [
        &[(4, 1), (7, 1)][..],
        &[(4, 2), (7, 2)],
        &[(0, 9), (4, 1), (7, 1), (23, 9)],
    ] {
        assert_eq!(policy.allows(&registers(good)), Ok(()), "{good:?}");
    }
}

#[test]
fn the_refusal_names_the_registers_that_differ_from_the_nearest_state() {
    let policy = enforced(&[&[(0, 1), (4, 1), (7, 1)], &[(0, 2), (4, 2), (7, 2)]]);
    for (quoted, register, others) in [
        ([(0, 1), (4, 1), (7, 3)], 7, &[7][..]),
        ([(0, 2), (4, 3), (7, 2)], 4, &[4]),
        // No state is made of two.
        ([(0, 1), (4, 1), (7, 2)], 7, &[7]),
        ([(0, 3), (4, 1), (7, 3)], 0, &[0, 7]),
        ([(0, 3), (4, 3), (7, 3)], 0, &[0, 4, 7]),
    ] {
        let denial = policy.allows(&registers(&quoted)).unwrap_err();

        let byte = quoted.iter().find(|(number, _)| *number == register);
        assert_eq!(
            denial,
            TpmDenial::RegisterNotAllowed {
                register,
                value: value(byte.unwrap().1),
                others: others.to_vec(),
            }
        );
    }
    let denial = policy.allows(&registers(&[(0, 3), (4, 1), (7, 3)]));
    let said = denial.unwrap_err().to_string();
    assert!(
        said.starts_with("registers 0, 7 are in no allowed state; register 0 is 0303"),
        "{said}"
    );
}

#[test]
fn a_register_of_the_policy_must_be_quoted() {
    let policy = enforced(&[&[(4, 1), (7, 1)]]);

    let denial = policy.allows(&registers(&[(4, 1)]));

    assert_eq!(denial, Err(TpmDenial::RegisterNotQuoted(7)));
}

#[test]
fn a_policy_without_states_allows_every_state() {
    assert_eq!(enforced(&[]).allows(&registers(&[(0, 9)])), Ok(()));
}

#[test]
fn a_digest_of_another_bank_is_refused() {
    let mut state = state(&[(4, 1), (7, 1)]);
    state.insert("7".to_owned(), "0f".repeat(48));

    assert_eq!(
        PcrPolicy::new(&settings(vec![self::state(&[(4, 1)]), state])),
        Err(invalid_state(
            "has a digest of 96 digits (SHA-384): only SHA-256 is supported, with 64 digits"
        ))
    );
}

#[test]
fn a_policy_that_means_nothing_is_refused() {
    let good = state(&[(4, 1)]);
    let of = |number: &str, value: String| PcrSet::from([(number.to_owned(), value)]);
    for bad in [
        PcrSet::new(),
        of("24", value(1)),
        of("-1", value(1)),
        of("four", value(1)),
        of("4", value(1).split_off(2)),
        of("4", value(0xab).to_uppercase()),
        // One register twice.
        [of("4", value(1)), of("04", value(2))]
            .into_iter()
            .flatten()
            .collect(),
    ] {
        assert_eq!(
            PcrPolicy::new(&settings(vec![good.clone(), bad.clone()])),
            Err(invalid_state(NOT_REGISTERS)),
            "{bad:?}"
        );
    }
}

#[test]
fn a_state_of_registers_that_software_resets_alone_is_refused() {
    let policy = |states: &[&[(u8, u8)]]| {
        let states = states.iter().map(|registers| state(registers));
        PcrPolicy::new(&settings(states.collect()))
    };
    for alone in [&[(16, 1)][..], &[(23, 1)], &[(16, 1), (23, 1)]] {
        assert_eq!(
            policy(&[&[(7, 1)], alone]),
            Err(invalid_state(ONLY_OF_SOFTWARE)),
            "{alone:?}"
        );
    }
    for with_another in [&[(7, 1), (16, 1)][..], &[(15, 1)], &[(17, 1)], &[(22, 1)]] {
        assert!(policy(&[with_another]).is_ok(), "{with_another:?}");
    }
}
