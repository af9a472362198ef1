from isingformer.explain import Table


def test_a_table_prints_itself():
    table = Table("Sizes", ("layer", "weights", "keep"), (("embed", 12288, 0.25), ("head", 10, 1234.5)))
    assert str(table) == "Sizes\nlayer  weights   keep\nembed   12,288   0.25\nhead        10  1,234"
    assert table.text()[0] == ("embed", "12,288", "0.25")


def test_an_empty_table_has_its_header():
    assert str(Table("Nothing", ("a", "b"), ())) == "Nothing\na  b"
