module example/run

go 1.18
