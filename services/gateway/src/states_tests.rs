use super::*;

fn names(secret: u8, deployment: &str) -> Names {
    Names { secret: TenantSecret([secret; 32]), deployment: DeploymentId::from(deployment) }
}

#[test]
fn a_name_depends_on_tenant_deployment_and_answer_and_shows_no_secret() {
    let name = names(1, "d").for_client("resp_1");
    assert!(name.starts_with("resp_1_w") && name.len() == "resp_1_w".len() + 24, "{name}");
    for other in
        [names(2, "d").for_client("resp_1"), names(1, "e").for_client("resp_1"), names(1, "d").for_client("resp_2")]
    {
        assert_ne!(name[name.len() - 24..], other[other.len() - 24..]);
    }
    assert_eq!(name, names(1, "d").for_client("resp_1"));
    assert_eq!(format!("{:?}", names(1, "d")), "Names { deployment: d, .. }");
}
